// Both ways to leave a stream, whose ids it prints, and the error of a wrong key.
// Arguments: the addresses of a gateway, and of one that asks for keys.
import OpenAI from "openai";

const [url, lockedUrl] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const asked = { model: "base", prompt: "Phileas Fogg", max_tokens: 110, ignore_eos: true, stream: true };

const aborted = await client.completions.create(asked);
try {
  for await (const chunk of aborted) {
    console.log(chunk.id);
    aborted.controller.abort();
    break;
  }
} catch (error) {
  if (!(error instanceof OpenAI.APIUserAbortError)) throw error;
}

for await (const chunk of await client.completions.create(asked)) {
  console.log(chunk.id);
  break;
}

try {
  await new OpenAI({ baseURL: `${lockedUrl}/v1`, apiKey: "another", maxRetries: 0 }).models.list();
} catch (error) {
  console.log(error.constructor.name, error.status, error.code, error.type);
}

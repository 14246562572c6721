// The request that would be sent, as a command and as a program.

export function asCurl(request, hasKey) {
  const quoted = JSON.stringify(request.body, null, 1).replaceAll("'", "'\\''");
  const key = hasKey ? " -H \"Authorization: Bearer $OPENAI_API_KEY\"" : "";
  const url = new URL(request.path, document.baseURI);
  return `curl -N ${url} -H 'Content-Type: application/json'${key} -d '${quoted}'\n`;
}

const KNOWN = [ // to the client of OpenAI; what vLLM has added goes into extra_body
  "model", "prompt", "messages", "max_tokens", "temperature", "top_p", "n", "seed", "stop", "logprobs", "top_logprobs",
  "presence_penalty", "frequency_penalty", "logit_bias", "tools",
];

export function asPython(request) {
  const { stream: _, ...body } = request.body;
  const isChat = request.path.endsWith("chat/completions");
  const isKnown = (name) => KNOWN.includes(name) || (isChat && name === "response_format");
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !isKnown(name)));
  const known = Object.entries(body).filter(([name]) => isKnown(name));
  const base = new URL("v1", document.baseURI);
  const call = isChat ? "chat.completions" : "completions";
  const lines = known.map(([name, value]) => `    ${name}=${literal(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${literal(extra)},`);
  return [
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(String(base))}, api_key="...")`,
    `for chunk in client.${call}.create(`,
    ...lines,
    "    stream=True,",
    "):",
    `    print(${isChat ? 'chunk.choices[0].delta.content or ""' : "chunk.choices[0].text"}, end="", flush=True)`,
    "",
  ].join("\n");
}

function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

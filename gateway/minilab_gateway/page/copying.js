// The request that was sent last, as a command and as a program.

export function asCurl(request, hasKey) {
  const quoted = JSON.stringify(request.body, null, 1).replaceAll("'", "'\\''");
  const key = hasKey ? " -H \"Authorization: Bearer $OPENAI_API_KEY\"" : "";
  const url = new URL(request.path, document.baseURI);
  return `curl -N ${url} -H 'Content-Type: application/json'${key} -d '${quoted}'\n`;
}

const OWN = ["top_k", "min_p", "repetition_penalty"]; // which the client of OpenAI does not know

export function asPython(request) {
  const { stream: _, ...body } = request.body;
  const extra = Object.fromEntries(OWN.filter((name) => name in body).map((name) => [name, body[name]]));
  const known = Object.entries(body).filter(([name]) => !OWN.includes(name));
  const base = new URL("v1", document.baseURI);
  const call = request.path.endsWith("chat/completions") ? "chat.completions" : "completions";
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
    `    print(${call === "completions" ? "chunk.choices[0].text" : 'chunk.choices[0].delta.content or ""'}, end="", flush=True)`,
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

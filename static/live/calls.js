// The playground's call as a person would type it. Pure.

/** @param {any} body @param {string} baseUrl */
export function curlCall(body, baseUrl) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return [
    `curl -N ${baseUrl}/chat/completions \\`,
    '  -H "Authorization: Bearer $FERRY_API_KEY" \\',
    '  -H "Content-Type: application/json" \\',
    `  -d '${json}'`,
  ].join("\n");
}

/** @param {any} body @param {string} baseUrl */
export function pythonCall(body, baseUrl) {
  const messages = body.messages
    .map((/** @type {any} */ m) => `        {"role": ${quoted(m.role)}, "content": ${quoted(m.content)}},`)
    .join("\n");
  return [
    "import os",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${quoted(baseUrl)}, api_key=os.environ["FERRY_API_KEY"])`,
    "stream = client.chat.completions.create(",
    `    model=${quoted(body.model)},`,
    "    messages=[",
    messages,
    "    ],",
    `    temperature=${body.temperature},`,
    `    max_tokens=${body.max_tokens},`,
    "    stream=True,",
    ")",
    "for chunk in stream:",
    '    if chunk.choices:',
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
  ].join("\n");
}

/** A string as Python and JSON both write it. @param {string} text */
const quoted = (text) => JSON.stringify(text);

// From logits to the probabilities that are drawn from, as `clearhead.inference.sampling` computes them:
// temperature -> top-k -> top-p -> min-p. A removed token has the probability 0.

const ROUNDING = 1e-6; // as there: tolerance for float32 probabilities that would be exact on paper

export function decodeFloats(base64) {
  const bytes = Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

export function softmax(logits) {
  let largest = -Infinity;
  for (const logit of logits) largest = Math.max(largest, logit);
  const powers = Float64Array.from(logits, (logit) => Math.exp(logit - largest));
  let total = 0;
  for (const power of powers) total += power;
  return powers.map((power) => power / total);
}

// Ids, the likeliest first; of equally likely ones the lowest first.
export function ranked(logits) {
  return Uint32Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a] || a - b);
}

function keepTopK(logits, k) {
  const kept = new Set(ranked(logits).subarray(0, k));
  return logits.map((logit, id) => (kept.has(id) ? logit : -Infinity));
}

function keepTopP(logits, p) {
  const probabilities = softmax(logits);
  const kept = logits.slice();
  let before = 0; // what the likelier tokens hold
  let isFirst = true;
  for (const id of ranked(logits)) {
    if (!isFirst && before >= p - ROUNDING) kept[id] = -Infinity;
    before += probabilities[id];
    isFirst = false;
  }
  return kept;
}

function keepMinP(logits, minP) {
  let largest = -Infinity;
  for (const logit of logits) largest = Math.max(largest, logit);
  const least = largest + Math.log(minP) - ROUNDING;
  return logits.map((logit) => (logit < least ? -Infinity : logit));
}

// The probabilities that a token is drawn from.
export function probabilities(logits, { temperature = 1, topK = null, topP = 1, minP = 0 } = {}) {
  let kept = Float64Array.from(logits);
  if (temperature === 0) {
    kept = keepTopK(kept, 1);
  } else {
    kept = kept.map((logit) => logit / temperature);
    if (topK !== null && topK < kept.length) kept = keepTopK(kept, topK);
    if (topP < 1) kept = keepTopP(kept, topP);
    if (minP > 0) kept = keepMinP(kept, minP);
  }
  return softmax(kept);
}

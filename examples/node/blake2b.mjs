// BLAKE2b with up to eight bytes of output (RFC 7693): Node's own has 64, which is another hash.

const IV = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const SIGMA = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4], [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13], [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11], [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5], [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];
const MIXED = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15], [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]];
const WORD = (1n << 64n) - 1n;
const turned = (value, bits) => ((value >> bits) | (value << (64n - bits))) & WORD;

export function digest(data, size = 8) {
  const state = [...IV];
  state[0] ^= 0x01010000n ^ BigInt(size);
  const blocks = Math.max(1, Math.ceil(data.length / 128));
  for (let block = 0; block < blocks; block++) {
    const part = Buffer.alloc(128);
    data.copy(part, 0, block * 128, Math.min(data.length, (block + 1) * 128));
    compress(state, part, BigInt(Math.min(data.length, (block + 1) * 128)), block === blocks - 1);
  }
  const found = Buffer.alloc(8);
  found.writeBigUInt64LE(state[0]);
  return found.subarray(0, size);
}

function compress(state, part, count, last) {
  const words = Array.from({ length: 16 }, (_, at) => part.readBigUInt64LE(at * 8));
  const v = [...state, ...IV];
  v[12] ^= count;
  if (last) v[14] ^= WORD;
  for (let round = 0; round < 12; round++) {
    const order = SIGMA[round % 10];
    MIXED.forEach(([a, b, c, d], at) => {
      v[a] = (v[a] + v[b] + words[order[2 * at]]) & WORD;
      v[d] = turned(v[d] ^ v[a], 32n);
      v[c] = (v[c] + v[d]) & WORD;
      v[b] = turned(v[b] ^ v[c], 24n);
      v[a] = (v[a] + v[b] + words[order[2 * at + 1]]) & WORD;
      v[d] = turned(v[d] ^ v[a], 16n);
      v[c] = (v[c] + v[d]) & WORD;
      v[b] = turned(v[b] ^ v[c], 63n);
    });
  }
  for (let at = 0; at < 8; at++) state[at] ^= v[at] ^ v[at + 8];
}

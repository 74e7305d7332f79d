// MessagePack, as far as envelopes and plain payloads need it. Objects are maps, Buffers are bin.

export function pack(value) {
  const parts = [];
  write(value, parts);
  return Buffer.concat(parts);
}

function head(parts, small, limit, sizes, length) {
  if (small !== null && length < limit) return parts.push(Buffer.from([small | length]));
  for (const [code, bytes] of sizes) {
    if (length < 2 ** (8 * bytes)) {
      const made = Buffer.alloc(1 + bytes);
      made[0] = code;
      made.writeUIntBE(length, 1, bytes);
      return parts.push(made);
    }
  }
  throw new RangeError("too long");
}

function write(value, parts) {
  if (value === null || value === undefined) parts.push(Buffer.from([0xc0]));
  else if (typeof value === "boolean") parts.push(Buffer.from([value ? 0xc3 : 0xc2]));
  else if (typeof value === "number" && Number.isInteger(value)) writeInteger(value, parts);
  else if (typeof value === "number") {
    const made = Buffer.alloc(9, 0xcb);
    made.writeDoubleBE(value, 1);
    parts.push(made);
  } else if (typeof value === "string") {
    const text = Buffer.from(value);
    head(parts, 0xa0, 32, [[0xd9, 1], [0xda, 2], [0xdb, 4]], text.length);
    parts.push(text);
  } else if (Buffer.isBuffer(value)) {
    head(parts, null, 0, [[0xc4, 1], [0xc5, 2], [0xc6, 4]], value.length);
    parts.push(value);
  } else if (Array.isArray(value)) {
    head(parts, 0x90, 16, [[0xdc, 2], [0xdd, 4]], value.length);
    for (const each of value) write(each, parts);
  } else {
    const entries = Object.entries(value);
    head(parts, 0x80, 16, [[0xde, 2], [0xdf, 4]], entries.length);
    for (const [name, each] of entries) {
      write(name, parts);
      write(each, parts);
    }
  }
}

function writeInteger(value, parts) {
  if (value >= 0 && value < 0x80) return parts.push(Buffer.from([value]));
  if (value < 0 && value >= -32) return parts.push(Buffer.from([0x100 + value]));
  if (value >= 0 && value < 2 ** 32) return head(parts, null, 0, [[0xcc, 1], [0xcd, 2], [0xce, 4]], value);
  for (const [code, bytes] of [[0xd0, 1], [0xd1, 2], [0xd2, 4]]) {
    if (value < 0 && value >= -(2 ** (8 * bytes - 1))) {
      const made = Buffer.alloc(1 + bytes);
      made[0] = code;
      made.writeIntBE(value, 1, bytes);
      return parts.push(made);
    }
  }
  const made = Buffer.alloc(9, value < 0 ? 0xd3 : 0xcf);
  if (value < 0) made.writeBigInt64BE(BigInt(value), 1);
  else made.writeBigUInt64BE(BigInt(value), 1);
  parts.push(made);
}

export function unpack(data) {
  const reader = { data, at: 0 };
  const value = read(reader);
  if (reader.at !== data.length) throw new RangeError("trailing bytes");
  return value;
}

function take(reader, length) {
  if (reader.at + length > reader.data.length) throw new RangeError("truncated");
  reader.at += length;
  return reader.data.subarray(reader.at - length, reader.at);
}

const number = (reader, bytes) => take(reader, bytes).readUIntBE(0, bytes);
const list = (reader, length) => Array.from({ length }, () => read(reader));
const map = (reader, length) => Object.fromEntries(Array.from({ length }, () => [read(reader), read(reader)]));
const text = (reader, length) => take(reader, length).toString();
const whole = (value) => (Number.isSafeInteger(Number(value)) ? Number(value) : value);
const extension = (reader, length) => ({ code: take(reader, 1).readInt8(0), body: Buffer.from(take(reader, length)) });

function read(reader) {
  const code = take(reader, 1)[0];
  if (code < 0x80) return code;
  if (code < 0x90) return map(reader, code & 15);
  if (code < 0xa0) return list(reader, code & 15);
  if (code < 0xc0) return text(reader, code & 31);
  if (code >= 0xe0) return code - 0x100;
  switch (code) {
    case 0xc0: return null;
    case 0xc2: return false;
    case 0xc3: return true;
    case 0xc4: case 0xc5: case 0xc6: return Buffer.from(take(reader, number(reader, 2 ** (code - 0xc4))));
    case 0xc7: case 0xc8: case 0xc9: return extension(reader, number(reader, 2 ** (code - 0xc7)));
    case 0xca: return take(reader, 4).readFloatBE(0);
    case 0xcb: return take(reader, 8).readDoubleBE(0);
    case 0xcc: case 0xcd: case 0xce: return number(reader, 2 ** (code - 0xcc));
    case 0xcf: return whole(take(reader, 8).readBigUInt64BE(0));
    case 0xd0: case 0xd1: case 0xd2: return take(reader, 2 ** (code - 0xd0)).readIntBE(0, 2 ** (code - 0xd0));
    case 0xd3: return whole(take(reader, 8).readBigInt64BE(0));
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return extension(reader, 2 ** (code - 0xd4));
    case 0xd9: case 0xda: case 0xdb: return text(reader, number(reader, 2 ** (code - 0xd9)));
    case 0xdc: case 0xdd: return list(reader, number(reader, 2 ** (code - 0xdb)));
    case 0xde: case 0xdf: return map(reader, number(reader, 2 ** (code - 0xdd)));
    default: throw new RangeError(`no MessagePack: ${code}`);
  }
}

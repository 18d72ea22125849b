/** Numbers of a quantized type as float32. */

/** Q8_0: blocks of 32 values, each a half-precision scale and 32 signed bytes; a value is scale * byte. */
export function widenQ8(data: Uint8Array, out: Float32Array): void {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  for (let at = 0, to = 0; at < data.length; at += 34, to += 32) {
    const scale = half(view.getUint16(at, true));
    for (let i = 0; i < 32; i++) out[to + i] = scale * view.getInt8(at + 2 + i);
  }
}

/** The number of an IEEE half-precision pattern. */
export function half(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

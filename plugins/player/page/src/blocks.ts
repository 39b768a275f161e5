/** Reads the matrices that plugins/player/robot_shapes.py writes. */

export interface Matrix {
  rows: number;
  columns: number;
  /** Row after row. */
  values: Float32Array;
}

/** Decodes a matrix from base64 text. */
export async function decode(text: string): Promise<Matrix> {
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const view = new DataView(await new Response(stream).arrayBuffer());
  const rows = view.getUint32(0, true);
  const columns = view.getUint32(4, true);
  const values = new Float32Array(rows * columns);
  const count = (rows - 1) * columns;
  const low = 8 + 16 * columns;
  for (let c = 0; c < columns; c++) {
    const first = view.getFloat64(8 + 8 * c, true);
    const unit = view.getFloat64(8 + 8 * (columns + c), true);
    let level = 0;
    values[c] = first;
    for (let r = 1; r < rows; r++) {
      const at = low + c * (rows - 1) + r - 1;
      level += view.getUint8(at) + 256 * view.getInt8(at + count);
      values[r * columns + c] = first + unit * level;
    }
  }
  return { rows, columns, values };
}

/** The ground under an episode: a periodic tile laid out under the whole path. */
import * as THREE from "three";
import type { Loaded, Tile } from "./page.ts";

const MARGIN_M = 3;
/** Of the squares, linear. */
const LIGHT = { light: [0.6, 0.64, 0.68], dark: [0.1, 0.11, 0.13] };
const DARK = { light: [0.44, 0.48, 0.53], dark: [0.06, 0.07, 0.085] };

/** The tile's height at a grid point, counted from the world's origin. */
function height(tile: Tile, column: number, row: number): number {
  const n = tile.heights.rows;
  const wrap = (k: number) => (((k + n / 2) % n) + n) % n;
  return tile.heights.values[wrap(row) * n + wrap(column)];
}

/** A height field with squares of one metre; theme says how dark. */
export function groundMesh({ poses, ghost, tile }: Loaded, theme: "light" | "dark"): THREE.Mesh {
  const step = tile.resolution;
  const low = [Infinity, Infinity];
  const high = [-Infinity, -Infinity];
  for (const { rows, columns, values } of ghost ? [poses, ghost] : [poses]) {
    for (let r = 0; r < rows; r++) {
      for (const axis of [0, 1]) {
        low[axis] = Math.min(low[axis], values[r * columns + axis]);
        high[axis] = Math.max(high[axis], values[r * columns + axis]);
      }
    }
  }
  const first = low.map((value) => Math.floor((value - MARGIN_M) / step));
  const [across, along] = high.map((value, k) => Math.ceil((value + MARGIN_M) / step) - first[k] + 1);
  const positions = new Float32Array(3 * across * along);
  const colours = new Float32Array(3 * across * along);
  for (let j = 0, at = 0; j < along; j++) {
    for (let i = 0; i < across; i++, at += 3) {
      const [x, y] = [(first[0] + i) * step, (first[1] + j) * step];
      positions.set([x, y, height(tile, first[0] + i, first[1] + j)], at);
      const even = (Math.floor(x + 1e-6) + Math.floor(y + 1e-6)) % 2 === 0;
      colours.set((even ? LIGHT : DARK)[theme], at);
    }
  }
  const triangles = new Uint32Array(6 * (across - 1) * (along - 1));
  for (let j = 0, at = 0; j < along - 1; j++) {
    for (let i = 0; i < across - 1; i++, at += 6) {
      const a = j * across + i;
      triangles.set([a, a + 1, a + across + 1, a, a + across + 1, a + across], at);
    }
  }
  const geometry = new THREE.BufferGeometry();
  geometry.setAttribute("position", new THREE.BufferAttribute(positions, 3));
  geometry.setAttribute("color", new THREE.BufferAttribute(colours, 3));
  geometry.setIndex(new THREE.BufferAttribute(triangles, 1));
  geometry.computeVertexNormals();
  const mesh = new THREE.Mesh(
    geometry,
    new THREE.MeshLambertMaterial({ vertexColors: true, flatShading: true }),
  );
  mesh.receiveShadow = true;
  return mesh;
}

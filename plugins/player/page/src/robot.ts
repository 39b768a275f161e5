/** The robot as three.js objects, posed by joint positions as MuJoCo does. */
import * as THREE from "three";
import { decode, type Matrix } from "./blocks.ts";
import type { Joint, Quat, Robot, Shape } from "./page.ts";

const GHOST = [120, 170, 90];
const OUTLINE = [70, 130, 45];
const OUTLINE_M = 0.012;

const quaternion = ([w, x, y, z]: Quat) => new THREE.Quaternion(x, y, z, w);

interface Limb {
  group: THREE.Group;
  pos: THREE.Vector3;
  quat: THREE.Quaternion;
  joints: (Joint & { line: THREE.Vector3; anchor: THREE.Vector3 })[];
}

export class RobotModel {
  readonly group = new THREE.Group();
  /** Where the feet touch, each in its body. */
  readonly feet: THREE.Object3D[];
  readonly base = new THREE.Vector3();
  readonly attitude = new THREE.Quaternion();
  private readonly limbs: Limb[];
  private readonly turn = new THREE.Quaternion();
  private readonly other = new THREE.Quaternion();
  private readonly moved = new THREE.Vector3();

  /** A ghost is drawn in one colour, seen through, with an outline; where both coincide it is behind. */
  constructor(private readonly robot: Robot, ghost = false) {
    this.limbs = robot.bodies.map((body) => ({
      group: new THREE.Group(),
      pos: new THREE.Vector3(...body.pos),
      quat: quaternion(body.quat),
      joints: body.joints.map((joint) => ({
        ...joint,
        line: new THREE.Vector3(...joint.axis),
        anchor: new THREE.Vector3(...joint.pos),
      })),
    }));
    robot.bodies.forEach((body, b) => {
      const { group } = this.limbs[b];
      (this.limbs[body.parent]?.group ?? this.group).add(group);
      for (const shape of body.shapes) group.add(...shapeMeshes(shape, ghost));
    });
    this.feet = robot.feet.map((foot) => {
      const mark = new THREE.Object3D();
      mark.position.set(...foot.pos);
      this.limbs[foot.body].group.add(mark);
      return mark;
    });
  }

  /** Poses the robot between two rows of poses; share is 0 at the first, 1 at the second. */
  pose(poses: Matrix, first: number, second: number, share: number): void {
    const { values, columns } = poses;
    const a = first * columns;
    const b = second * columns;
    const between = (k: number) => values[a + k] + share * (values[b + k] - values[a + k]);
    this.base.set(between(0), between(1), between(2));
    const turned = (at: number, into: THREE.Quaternion) =>
      into.set(values[at + 4], values[at + 5], values[at + 6], values[at + 3]).normalize();
    turned(a, this.attitude).slerp(turned(b, this.other), share);
    this.limbs.forEach((limb, k) => {
      const { group } = limb;
      if (k === this.robot.root) {
        group.position.copy(this.base);
        group.quaternion.copy(this.attitude);
        return;
      }
      group.position.copy(limb.pos);
      group.quaternion.copy(limb.quat);
      for (const joint of limb.joints) this.apply(group, joint, between(joint.index) - joint.rest);
    });
    this.group.updateMatrixWorld(true);
  }

  /** Moves a body by one joint: about its anchor, or along its axis. */
  private apply(group: THREE.Group, joint: Limb["joints"][number], value: number): void {
    if (joint.kind === "slide") {
      this.moved.copy(joint.line).multiplyScalar(value).applyQuaternion(group.quaternion);
      group.position.add(this.moved);
      return;
    }
    this.turn.setFromAxisAngle(joint.line, value);
    this.moved.copy(joint.anchor).applyQuaternion(this.turn).sub(joint.anchor).negate();
    group.position.add(this.moved.applyQuaternion(group.quaternion));
    group.quaternion.multiply(this.turn);
  }
}

/** A shape's mesh, and of a ghost its outline. */
function shapeMeshes(shape: Shape, ghost: boolean): THREE.Mesh[] {
  const behind = { transparent: true, opacity: 0.45, polygonOffset: true, polygonOffsetFactor: 4, polygonOffsetUnits: 16 };
  const material = new THREE.MeshLambertMaterial(ghost ? behind : {});
  paint(material, ghost ? GHOST : shape.colour);
  const geometry = geometryOf(shape);
  const meshes: THREE.Mesh[] = [new THREE.Mesh(geometry, material)];
  meshes[0].castShadow = !ghost;
  if (ghost) {
    meshes.push(new THREE.Mesh(geometry, OUTLINE_LOOK));
    meshes[1].renderOrder = 1; // after the ghost itself, which hides the hull but for its rim
  }
  for (const mesh of meshes) {
    mesh.position.set(...shape.pos);
    mesh.quaternion.copy(quaternion(shape.quat));
  }
  if (shape.triangles) {
    void decode(shape.triangles).then(({ values }) => {
      geometry.setAttribute("position", new THREE.BufferAttribute(values, 3));
      geometry.computeVertexNormals();
    });
  }
  return meshes;
}

function paint(material: THREE.MeshLambertMaterial | THREE.MeshBasicMaterial, [red, green, blue]: number[]): void {
  material.color.setRGB(red / 255, green / 255, blue / 255, THREE.SRGBColorSpace);
}

/** The inner side of a hull around a shape: a rim is seen of it. */
const OUTLINE_LOOK = new THREE.MeshBasicMaterial({ side: THREE.BackSide, transparent: true });
paint(OUTLINE_LOOK, OUTLINE);
OUTLINE_LOOK.onBeforeCompile = (shader) => {
  const moved = `#include <begin_vertex>\n transformed += normalize(normal) * ${OUTLINE_M};`;
  shader.vertexShader = shader.vertexShader.replace("#include <begin_vertex>", moved);
};

/** MuJoCo's sizes: half lengths, and cylinders and capsules along z. */
function geometryOf({ kind, size: [a, b, c] }: Shape): THREE.BufferGeometry {
  switch (kind) {
    case "sphere":
      return new THREE.SphereGeometry(a, 16, 12);
    case "ellipsoid":
      return new THREE.SphereGeometry(1, 16, 12).scale(a, b, c);
    case "capsule":
      return new THREE.CapsuleGeometry(a, 2 * b, 6, 12).rotateX(Math.PI / 2);
    case "cylinder":
      return new THREE.CylinderGeometry(a, a, 2 * b, 16).rotateX(Math.PI / 2);
    case "box":
      return new THREE.BoxGeometry(2 * a, 2 * b, 2 * c);
    case "mesh":
      return new THREE.BufferGeometry();
  }
}

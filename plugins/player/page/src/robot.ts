/** The robot as three.js objects, posed by joint positions as MuJoCo does. */
import * as THREE from "three";
import { decode, type Matrix } from "./blocks.ts";
import type { Joint, Quat, Robot, Shape } from "./page.ts";

const GHOST = [120, 170, 90];

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

  /** A ghost is drawn in one colour, and seen through. */
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
      for (const shape of body.shapes) group.add(shapeMesh(shape, ghost));
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

function shapeMesh(shape: Shape, ghost: boolean): THREE.Mesh {
  const [red, green, blue] = ghost ? GHOST : shape.colour;
  const material = new THREE.MeshLambertMaterial({ transparent: ghost, opacity: ghost ? 0.45 : 1 });
  material.color.setRGB(red / 255, green / 255, blue / 255, THREE.SRGBColorSpace);
  const mesh = new THREE.Mesh(geometryOf(shape), material);
  mesh.position.set(...shape.pos);
  mesh.quaternion.copy(quaternion(shape.quat));
  mesh.castShadow = !ghost;
  if (shape.triangles) {
    void decode(shape.triangles).then(({ values }) => {
      mesh.geometry.setAttribute("position", new THREE.BufferAttribute(values, 3));
      mesh.geometry.computeVertexNormals();
    });
  }
  return mesh;
}

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

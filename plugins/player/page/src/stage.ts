/** The 3-D view: robot, ground, barriers, command, velocity and contacts. */
import * as THREE from "three";
import { OrbitControls } from "three/examples/jsm/controls/OrbitControls.js";
import type { Matrix } from "./blocks.ts";
import { groundMesh } from "./ground.ts";
import { at, column, index, type Loaded } from "./page.ts";
import { Quality } from "./quality.ts";
import { RobotModel } from "./robot.ts";

const CONTACT_N = 1;
const FORCE_M_PER_N = 0.001;
const ARROW_M_PER_MS = 0.35;
const COMMAND = 0xcc79a7;
const VELOCITY = 0x009e73;
const BARRIER = 0xe69f00;
const PRESSED = 0xd62728;
const SMOOTHING_FRAMES = 12;
const FEET = ["FL", "FR", "RL", "RR"].map((foot) => column("contact force", foot));
const PRESS = column("contact force", "barriers");
const SPEEDS = ["commanded x", "commanded y", "x", "y"].map((name) => column("velocity", name));

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Poses a robot as it is at a time in s. */
function poseAt(robot: RobotModel, poses: Matrix, time: number): void {
  const frame = Math.min(Math.max(time / index.dt, 0), poses.rows - 1);
  const first = Math.min(Math.floor(frame + 1e-6), poses.rows - 1);
  const second = Math.min(first + 1, poses.rows - 1);
  robot.pose(poses, first, second, Math.max(frame - first, 0));
}

/** A shaft with a tip, of length 1 along x. */
function arrow(colour: number): THREE.Group {
  const material = new THREE.MeshBasicMaterial({ color: colour });
  const shaft = new THREE.Mesh(new THREE.CylinderGeometry(0.012, 0.012, 0.8, 8), material);
  const tip = new THREE.Mesh(new THREE.ConeGeometry(0.035, 0.2, 12), material);
  shaft.position.y = 0.4;
  tip.position.y = 0.9;
  const group = new THREE.Group();
  const pivot = new THREE.Group().add(shaft, tip);
  pivot.rotation.z = -Math.PI / 2;
  return group.add(pivot);
}

export class Stage {
  readonly robot = new RobotModel(index.robot);
  readonly ghost = new RobotModel(index.robot, true);
  readonly quality: Quality;
  follow = true;
  /** Whether a ghost is shown. */
  haunted = true;
  private readonly renderer: THREE.WebGLRenderer;
  private readonly scene = new THREE.Scene();
  private readonly camera = new THREE.PerspectiveCamera(35, 1, 0.05, 60);
  private readonly controls: OrbitControls;
  private readonly sun = new THREE.DirectionalLight(0xffffff, 2);
  private readonly command = arrow(COMMAND);
  private readonly velocity = arrow(VELOCITY);
  private readonly forces: THREE.Mesh[];
  private readonly dots: THREE.Mesh[];
  private readonly barrierLook = new THREE.MeshLambertMaterial({ transparent: true, opacity: 0.5 });
  private loaded?: Loaded;
  private surroundings = new THREE.Group();
  private readonly looked = new THREE.Vector3();
  private readonly scale = index.robot.legLength / 0.5;

  /** changed is called when the view has to be drawn again. */
  constructor(private readonly canvas: HTMLCanvasElement, changed: () => void) {
    this.renderer = new THREE.WebGLRenderer({ canvas, antialias: false });
    this.renderer.shadowMap.enabled = true;
    this.camera.up.set(0, 0, 1);
    this.controls = new OrbitControls(this.camera, canvas);
    this.controls.addEventListener("change", changed);
    this.sun.shadow.mapSize.set(1024, 1024);
    Object.assign(this.sun.shadow.camera, { left: -2, right: 2, top: 2, bottom: -2, far: 12 });
    this.scene.add(this.sun, this.sun.target, new THREE.HemisphereLight(0xffffff, 0x888888, 1.2));
    this.scene.add(this.robot.group, this.ghost.group, this.command, this.velocity, this.surroundings);
    const look = new THREE.MeshBasicMaterial({ color: PRESSED });
    const radius = 1.5 * index.robot.footRadius;
    this.dots = this.robot.feet.map((foot) => {
      const dot = new THREE.Mesh(new THREE.SphereGeometry(radius, 12, 8), look);
      foot.add(dot);
      return dot;
    });
    const stick = new THREE.CylinderGeometry(0.008, 0.008, 1, 6).rotateX(Math.PI / 2).translate(0, 0, 0.5);
    this.forces = this.robot.feet.map(() => new THREE.Mesh(stick, look));
    this.scene.add(...this.forces);
    this.quality = new Quality((ratio, shadows) => {
      this.renderer.setPixelRatio(ratio);
      this.sun.castShadow = shadows;
      this.resize();
    });
    new ResizeObserver(() => {
      this.resize();
      changed();
    }).observe(canvas);
    dark.addEventListener("change", () => {
      this.paint();
      changed();
    });
    this.paint();
  }

  /** Shows another episode from behind its robot. */
  show(loaded: Loaded): void {
    this.loaded = loaded;
    this.surround(loaded);
    this.reset(loaded, 0);
  }

  /** Lays out ground and barriers. */
  private surround(loaded: Loaded): void {
    this.surroundings.traverse((node) => node instanceof THREE.Mesh && node.geometry.dispose());
    this.scene.remove(this.surroundings);
    this.surroundings = new THREE.Group().add(groundMesh(loaded, dark.matches ? "dark" : "light"));
    for (const barrier of loaded.episode.barriers) {
      const [a, b, c] = barrier.half.map((half) => 2 * half);
      const box = new THREE.Mesh(new THREE.BoxGeometry(a, b, c), this.barrierLook);
      box.position.set(...barrier.centre);
      box.rotation.z = barrier.yaw;
      this.surroundings.add(box);
    }
    this.scene.add(this.surroundings);
  }

  /** Puts the camera behind and beside the robot as it heads at a time. */
  reset(loaded: Loaded, time: number): void {
    this.pose(loaded, time);
    const yaw = this.heading();
    this.smooth(loaded, time, this.looked);
    const away = new THREE.Vector3(-1.2, -1.7, 0.9).multiplyScalar(this.scale);
    this.controls.target.copy(this.looked);
    this.camera.position.copy(this.looked).add(away.applyAxisAngle(this.camera.up, yaw));
    this.controls.update();
  }

  /** Draws the episode at a time in s. */
  draw(loaded: Loaded, time: number): void {
    this.pose(loaded, time);
    const step = Math.floor(time / index.dt + 1e-6);
    const before = this.looked.clone();
    this.smooth(loaded, time, this.looked);
    if (this.follow) {
      const moved = this.looked.clone().sub(before);
      this.camera.position.add(moved);
      this.controls.target.add(moved);
    }
    // After its last pose the robot stands still where it was: nothing moves or presses it.
    const over = time >= loaded.end - 1e-6;
    const [wantedX, wantedY, x, y] = SPEEDS.map((curve) => (over ? 0 : at(loaded, step, curve)));
    this.point(this.command, wantedX, wantedY, 0.32);
    this.point(this.velocity, x, y, 0.26);
    const place = new THREE.Vector3();
    this.robot.feet.forEach((foot, k) => {
      const force = over ? 0 : at(loaded, step, FEET[k]);
      this.dots[k].visible = this.forces[k].visible = force > CONTACT_N;
      this.forces[k].position.copy(foot.getWorldPosition(place));
      this.forces[k].scale.z = Math.max(force * FORCE_M_PER_N, 1e-3);
    });
    const pressed = !over && at(loaded, step, PRESS) > CONTACT_N;
    this.barrierLook.color.set(pressed ? PRESSED : BARRIER);
    this.sun.position.copy(this.looked).add(place.set(-1.2, 0.9, 5));
    this.sun.target.position.copy(this.looked);
    this.renderer.render(this.scene, this.camera);
  }

  private heading(): number {
    const { x, y, z, w } = this.robot.attitude;
    return Math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z));
  }

  private pose({ poses, ghost }: Loaded, time: number): void {
    this.ghost.group.visible = ghost !== undefined && this.haunted;
    poseAt(this.robot, poses, time);
    if (ghost) poseAt(this.ghost, ghost, time);
  }

  /** The mean of the base's positions around a time: what the camera follows. */
  private smooth({ poses }: Loaded, time: number, into: THREE.Vector3): void {
    const middle = Math.min(time / index.dt, poses.rows - 1);
    into.set(0, 0, 0);
    let weights = 0;
    const half = SMOOTHING_FRAMES;
    for (let r = Math.max(0, Math.ceil(middle - half)); r < Math.min(poses.rows, middle + half); r++) {
      const weight = half - Math.abs(r - middle);
      const place = r * poses.columns;
      into.x += weight * poses.values[place];
      into.y += weight * poses.values[place + 1];
      into.z += weight * poses.values[place + 2];
      weights += weight;
    }
    into.divideScalar(weights);
  }

  /** An arrow above the trunk for a velocity in the heading frame, m/s. */
  private point(shown: THREE.Group, x: number, y: number, above: number): void {
    const speed = Math.hypot(x, y);
    shown.visible = speed > 0.03;
    shown.position.copy(this.robot.base);
    shown.position.z += above * this.scale;
    shown.rotation.z = this.heading() + Math.atan2(y, x);
    const length = Math.max(speed * ARROW_M_PER_MS, 0.05);
    const thick = Math.min(1, 3 * length);
    shown.scale.set(length, thick, thick);
  }

  private paint(): void {
    const sky = new THREE.Color(dark.matches ? 0x14181d : 0xf6f8fa);
    this.scene.background = sky;
    if (this.loaded) this.surround(this.loaded);
    this.scene.fog = new THREE.Fog(sky, 4 * this.scale, 12 * this.scale);
  }

  private resize(): void {
    const { clientWidth, clientHeight } = this.canvas;
    if (!clientWidth || !clientHeight) return;
    this.renderer.setSize(clientWidth, clientHeight, false);
    this.camera.aspect = clientWidth / clientHeight;
    this.camera.updateProjectionMatrix();
  }
}

// A ROS 2 node that runs the policy in policy.h: joint states and IMU in, joint targets out.
//
// It starts in damping. The service ~/run (std_srvs/SetBool) with true moves the joints to the
// default pose and then starts the policy; with false it damps. Late or non-finite data, a trunk
// that tilts too far and an error of the policy damp, until ~/run asks again.
//
// Targets: std_msgs/Float64MultiArray of 3 x joints, joints in the order of policy_joint_names:
// target in rad, kp in N m/rad, kd in N m s/rad. The motors' driver has to hold
// kp (target - q) - kd dq within the torque limits. In damping kp is 0.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <geometry_msgs/msg/twist.hpp>
#include <rclcpp/rclcpp.hpp>
#include <sensor_msgs/msg/imu.hpp>
#include <sensor_msgs/msg/joint_state.hpp>
#include <std_msgs/msg/float64_multi_array.hpp>
#include <std_srvs/srv/set_bool.hpp>

#include "policy.h"

namespace
{
constexpr std::size_t JOINTS = POLICY_ACTIONS;
constexpr std::array<std::size_t, 3> VELOCITIES = {
    POLICY_COMMAND_VEL_X, POLICY_COMMAND_VEL_Y, POLICY_COMMAND_YAW_RATE};

enum class Mode { Damping, Standing, Running };
}  // namespace

class PolicyNode : public rclcpp::Node
{
public:
    PolicyNode()
    : Node("gaitforge_policy")
    {
        command_ = numbers("command", POLICY_COMMANDS);
        lowest_ = numbers("velocity_lower", VELOCITIES.size());
        highest_ = numbers("velocity_upper", VELOCITIES.size());
        sensor_timeout_s_ = declare_parameter<double>("sensor_timeout_s");
        command_timeout_s_ = declare_parameter<double>("command_timeout_s");
        max_tilt_rad_ = declare_parameter<double>("max_tilt_rad");
        stand_s_ = declare_parameter<double>("stand_s");
        stand_gain_ = declare_parameter<double>("stand_gain");
        damping_nms_per_rad_ = declare_parameter<double>("damping_nms_per_rad");

        float error = 0.0f;
        const int code = policy_check(&state_, &error);
        if (code != POLICY_OK) {
            throw std::runtime_error("policy_check returned " + std::to_string(code) +
                                     ": this is not the exported policy, and it does not run");
        }
        RCLCPP_INFO(get_logger(), "known answers right, largest error %.2g", (double)error);

        using std::placeholders::_1;
        using std::placeholders::_2;
        const auto newest = rclcpp::SensorDataQoS();
        joints_ = create_subscription<sensor_msgs::msg::JointState>(
            "joint_states", newest, std::bind(&PolicyNode::on_joints, this, _1));
        imu_ = create_subscription<sensor_msgs::msg::Imu>(
            "imu", newest, std::bind(&PolicyNode::on_imu, this, _1));
        velocity_ = create_subscription<geometry_msgs::msg::Twist>(
            "cmd_vel", rclcpp::QoS(1), std::bind(&PolicyNode::on_velocity, this, _1));
        targets_ = create_publisher<std_msgs::msg::Float64MultiArray>(
            "joint_targets", rclcpp::QoS(1));
        run_ = create_service<std_srvs::srv::SetBool>(
            "~/run", std::bind(&PolicyNode::on_run, this, _1, _2));
        timer_ = create_wall_timer(
            std::chrono::duration<double>(POLICY_CONTROL_DT_S),
            std::bind(&PolicyNode::step, this));
    }

private:
    // An array parameter of `count` numbers.
    std::vector<double> numbers(const std::string & name, std::size_t count)
    {
        auto values = declare_parameter<std::vector<double>>(name);
        if (values.size() != count) {
            throw std::runtime_error(
                "parameter " + name + " has to be " + std::to_string(count) + " numbers");
        }
        return values;
    }

    void on_joints(const sensor_msgs::msg::JointState & message)
    {
        if (message.name != names_) {
            names_ = message.name;
            std::vector<const char *> names;
            for (const auto & name : names_) {
                names.push_back(name.c_str());
            }
            mapped_ = policy_map(names.data(), (int)names.size(), places_.data()) == 0;
            if (!mapped_) {
                damp("joint_states lacks joints of the policy, or names one twice");
            }
        }
        const auto count = names_.size();
        if (!mapped_ || message.position.size() != count || message.velocity.size() != count) {
            return;  // without positions and velocities the data get late, and the motors damp
        }
        for (std::size_t i = 0; i < JOINTS; ++i) {
            sensors_.joint_pos_rad[i] = (float)message.position[places_[i]];
            sensors_.joint_vel_rads[i] = (float)message.velocity[places_[i]];
        }
        joints_at_s_ = now_s();
    }

    void on_imu(const sensor_msgs::msg::Imu & message)
    {
        sensors_.quaternion_wxyz[0] = (float)message.orientation.w;
        sensors_.quaternion_wxyz[1] = (float)message.orientation.x;
        sensors_.quaternion_wxyz[2] = (float)message.orientation.y;
        sensors_.quaternion_wxyz[3] = (float)message.orientation.z;
        sensors_.gyro_rads[0] = (float)message.angular_velocity.x;
        sensors_.gyro_rads[1] = (float)message.angular_velocity.y;
        sensors_.gyro_rads[2] = (float)message.angular_velocity.z;
        imu_at_s_ = now_s();
    }

    void on_velocity(const geometry_msgs::msg::Twist & message)
    {
        const std::array<double, 3> wanted = {
            message.linear.x, message.linear.y, message.angular.z};
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            if (!std::isfinite(wanted[i])) {
                return;
            }
        }
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            command_[VELOCITIES[i]] = std::clamp(wanted[i], lowest_[i], highest_[i]);
        }
        velocity_at_s_ = now_s();
    }

    void on_run(
        const std::shared_ptr<std_srvs::srv::SetBool::Request> request,
        std::shared_ptr<std_srvs::srv::SetBool::Response> response)
    {
        if (!request->data) {
            damp("asked to stop");
        } else if (mode_ == Mode::Damping) {
            const auto fault = sensor_fault();
            if (fault.empty()) {
                std::copy_n(sensors_.joint_pos_rad, JOINTS, start_rad_.begin());
                mode_at_s_ = now_s();
                mode_ = Mode::Standing;
            }
            response->message = fault;
        }
        response->success = response->message.empty();
    }

    // What is wrong with the sensors' data; empty for nothing.
    std::string sensor_fault() const
    {
        const double now = now_s();
        if (!mapped_ || now - joints_at_s_ > sensor_timeout_s_) {
            return "joint_states are late or lack joints";
        }
        if (now - imu_at_s_ > sensor_timeout_s_) {
            return "imu is late";
        }
        const float * q = sensors_.quaternion_wxyz;
        const float square = q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3];
        const float up = 1.0f - 2.0f * (q[1] * q[1] + q[2] * q[2]) / square;
        if (!(up > (float)std::cos(max_tilt_rad_))) {  // also where it is not a number
            return "the trunk tilts too far";
        }
        for (std::size_t i = 0; i < JOINTS; ++i) {
            if (!std::isfinite(sensors_.joint_pos_rad[i])) {
                return "a joint's position is not finite";
            }
        }
        return "";
    }

    // One control step.
    void step()
    {
        if (mode_ != Mode::Damping) {
            const auto fault = sensor_fault();
            if (!fault.empty()) {
                damp(fault);
            }
        }
        if (mode_ == Mode::Standing) {
            const double share = std::min(1.0, (now_s() - mode_at_s_) / stand_s_);
            std::array<float, JOINTS> target_rad;
            for (std::size_t i = 0; i < JOINTS; ++i) {
                const float way = policy_default_rad[i] - start_rad_[i];
                target_rad[i] = start_rad_[i] + (float)share * way;
            }
            publish(target_rad, stand_gain_);
            if (share == 1.0) {
                policy_reset(&state_);
                mode_ = Mode::Running;
            }
            return;
        }
        if (mode_ == Mode::Running) {
            if (now_s() - velocity_at_s_ > command_timeout_s_) {
                for (const auto place : VELOCITIES) {
                    command_[place] = 0.0;
                }
            }
            const std::vector<float> command(command_.begin(), command_.end());
            std::array<float, JOINTS> target_rad;
            const int code = policy_step(&state_, &sensors_, command.data(), target_rad.data());
            if (code == POLICY_OK) {
                publish(target_rad, 1.0);
                return;
            }
            damp("the policy returned " + std::to_string(code));
        }
        publish_damping();
    }

    void damp(const std::string & reason)
    {
        if (mode_ != Mode::Damping) {
            RCLCPP_ERROR(get_logger(), "damping: %s", reason.c_str());
        }
        mode_ = Mode::Damping;
    }

    void publish(const std::array<float, JOINTS> & target_rad, double gain)
    {
        std::vector<double> rows(target_rad.begin(), target_rad.end());
        for (std::size_t i = 0; i < JOINTS; ++i) {
            rows.push_back(gain * (double)policy_kp_nm_per_rad[i]);
        }
        for (std::size_t i = 0; i < JOINTS; ++i) {
            rows.push_back(gain * (double)policy_kd_nms_per_rad[i]);
        }
        send(rows);
    }

    void publish_damping()
    {
        std::vector<double> rows(3 * JOINTS, 0.0);
        std::fill(rows.begin() + 2 * JOINTS, rows.end(), damping_nms_per_rad_);
        send(rows);
    }

    void send(const std::vector<double> & rows)
    {
        std_msgs::msg::Float64MultiArray message;
        message.layout.dim.resize(2);
        message.layout.dim[0].label = "target_rad, kp, kd";
        message.layout.dim[0].size = 3;
        message.layout.dim[0].stride = (std::uint32_t)rows.size();
        message.layout.dim[1].label = "joint";
        message.layout.dim[1].size = JOINTS;
        message.layout.dim[1].stride = JOINTS;
        message.data = rows;
        targets_->publish(message);
    }

    // Seconds of a clock that never jumps.
    static double now_s()
    {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        return std::chrono::duration<double>(now).count();
    }

    static constexpr double NEVER = -1e9;
    std::vector<double> command_, lowest_, highest_;
    double sensor_timeout_s_, command_timeout_s_, max_tilt_rad_, stand_s_, stand_gain_;
    double damping_nms_per_rad_;
    double joints_at_s_ = NEVER, imu_at_s_ = NEVER, velocity_at_s_ = NEVER, mode_at_s_ = NEVER;
    std::vector<std::string> names_;
    std::array<int, JOINTS> places_{};
    bool mapped_ = false;
    Mode mode_ = Mode::Damping;
    std::array<float, JOINTS> start_rad_{};
    policy_sensors sensors_{};
    policy_state state_{};
    rclcpp::Subscription<sensor_msgs::msg::JointState>::SharedPtr joints_;
    rclcpp::Subscription<sensor_msgs::msg::Imu>::SharedPtr imu_;
    rclcpp::Subscription<geometry_msgs::msg::Twist>::SharedPtr velocity_;
    rclcpp::Publisher<std_msgs::msg::Float64MultiArray>::SharedPtr targets_;
    rclcpp::Service<std_srvs::srv::SetBool>::SharedPtr run_;
    rclcpp::TimerBase::SharedPtr timer_;
};

int main(int argc, char ** argv)
{
    rclcpp::init(argc, argv);
    int code = 0;
    try {
        rclcpp::spin(std::make_shared<PolicyNode>());
    } catch (const std::exception & error) {
        RCLCPP_FATAL(rclcpp::get_logger("gaitforge_policy"), "%s", error.what());
        code = 1;
    }
    rclcpp::shutdown();
    return code;
}

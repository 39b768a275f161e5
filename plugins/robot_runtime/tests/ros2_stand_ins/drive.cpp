// Drives the node: reads lines from standard input, prints targets.
//
//   parameter NAME N VALUE...   before "start"; N 0 for a number alone
//   start                       the node is made
//   joints N NAME... Q... DQ... | imu W X Y Z GX GY GZ | velocity X Y YAW | run 0|1 | wait SECONDS
//   step                        one turn of the timer; prints the targets that it publishes
#include <chrono>
#include <iostream>
#include <sstream>
#include <thread>

#include <geometry_msgs/msg/twist.hpp>
#include <rclcpp/rclcpp.hpp>
#include <sensor_msgs/msg/imu.hpp>
#include <sensor_msgs/msg/joint_state.hpp>
#include <std_msgs/msg/float64_multi_array.hpp>
#include <std_srvs/srv/set_bool.hpp>

namespace
{
std::vector<double> read(std::istream & words, std::size_t count)
{
    std::vector<double> values;
    std::string word;
    while (values.size() < count && words >> word) {
        values.push_back(std::stod(word));  // also "nan"
    }
    return values;
}

void follow(std::istream & words, const std::string & verb)
{
    auto & wires = rclcpp::wires();
    if (verb == "joints") {
        std::size_t count = 0;
        words >> count;
        sensor_msgs::msg::JointState message;
        message.name.resize(count);
        for (auto & name : message.name) {
            words >> name;
        }
        message.position = read(words, count);
        message.velocity = read(words, count);
        wires.subscriptions.at("joint_states")(&message);
    } else if (verb == "imu") {
        const auto v = read(words, 7);
        sensor_msgs::msg::Imu message;
        message.orientation = {v[1], v[2], v[3], v[0]};
        message.angular_velocity = {v[4], v[5], v[6]};
        wires.subscriptions.at("imu")(&message);
    } else if (verb == "velocity") {
        const auto v = read(words, 3);
        geometry_msgs::msg::Twist message;
        message.linear = {v[0], v[1], 0.0};
        message.angular = {0.0, 0.0, v[2]};
        wires.subscriptions.at("cmd_vel")(&message);
    } else if (verb == "run") {
        auto request = std::make_shared<std_srvs::srv::SetBool::Request>();
        auto response = std::make_shared<std_srvs::srv::SetBool::Response>();
        request->data = read(words, 1)[0] != 0.0;
        wires.service(&request, &response);
    } else if (verb == "wait") {
        std::this_thread::sleep_for(std::chrono::duration<double>(read(words, 1)[0]));
    } else if (verb == "step") {
        wires.timer();
    }
}
}  // namespace

void rclcpp::init(int, char **)
{
    wires().on_publish = [](const void * message) {
        std::cout.precision(9);
        for (const double value :
             static_cast<const std_msgs::msg::Float64MultiArray *>(message)->data) {
            std::cout << value << ' ';
        }
        std::cout << '\n';
    };
    std::string line;
    while (std::getline(std::cin, line) && line != "start") {
        std::istringstream words(line);
        std::string verb, name;
        std::size_t count = 0;
        words >> verb >> name >> count;
        if (count == 0) {
            wires().parameters[name] = read(words, 1)[0];
        } else {
            wires().parameters[name] = read(words, count);
        }
    }
}

void rclcpp::spin(const std::shared_ptr<Node> &)
{
    std::string line;
    while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        std::string verb;
        words >> verb;
        follow(words, verb);
    }
}

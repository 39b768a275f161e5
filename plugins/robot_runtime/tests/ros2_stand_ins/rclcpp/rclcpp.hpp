// A small stand-in for ROS 2's rclcpp, to compile and drive the node where ROS is not.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#define RCLCPP_INFO(logger, ...) rclcpp::say(logger, __VA_ARGS__)
#define RCLCPP_ERROR(logger, ...) rclcpp::say(logger, __VA_ARGS__)
#define RCLCPP_FATAL(logger, ...) rclcpp::say(logger, __VA_ARGS__)

namespace rclcpp
{
struct Logger { std::string name; };
inline Logger get_logger(const std::string & name) { return {name}; }

template <typename... Arguments>
void say(const Logger & logger, const char * format, Arguments... arguments)
{
    std::fprintf(stderr, "%s: ", logger.name.c_str());
    std::fprintf(stderr, format, arguments...);
    std::fprintf(stderr, "\n");
}

struct QoS { explicit QoS(int) {} };
struct SensorDataQoS : QoS { SensorDataQoS() : QoS(5) {} };

// What the program that drives the node reaches.
struct Wires
{
    std::map<std::string, std::variant<double, std::vector<double>>> parameters;
    std::map<std::string, std::function<void(const void *)>> subscriptions;
    std::function<void(const void *)> on_publish;
    std::function<void(const void *, void *)> service;
    std::function<void()> timer;
    double period_s = 0.0;
};
inline Wires & wires()
{
    static Wires all;
    return all;
}

template <typename Message> struct Subscription { using SharedPtr = std::shared_ptr<Subscription>; };
template <typename Message> struct Publisher
{
    using SharedPtr = std::shared_ptr<Publisher>;
    void publish(const Message & message) { wires().on_publish(&message); }
};
template <typename Type> struct Service { using SharedPtr = std::shared_ptr<Service>; };
struct TimerBase { using SharedPtr = std::shared_ptr<TimerBase>; };

class Node
{
public:
    explicit Node(const std::string & name) : name_(name) {}
    Logger get_logger() const { return {name_}; }

    template <typename T> T declare_parameter(const std::string & name)
    {
        const auto found = wires().parameters.find(name);
        if (found == wires().parameters.end()) {
            throw std::runtime_error("no value for the parameter " + name);
        }
        return std::get<T>(found->second);
    }
    template <typename Message, typename Callback>
    typename Subscription<Message>::SharedPtr create_subscription(
        const std::string & topic, const QoS &, Callback && callback)
    {
        const std::function<void(const Message &)> receive = callback;
        wires().subscriptions[topic] = [receive](const void * message) {
            receive(*static_cast<const Message *>(message));
        };
        return std::make_shared<Subscription<Message>>();
    }
    template <typename Message>
    typename Publisher<Message>::SharedPtr create_publisher(const std::string &, const QoS &)
    {
        return std::make_shared<Publisher<Message>>();
    }
    template <typename Type, typename Callback>
    typename Service<Type>::SharedPtr create_service(const std::string &, Callback && callback)
    {
        using Request = std::shared_ptr<typename Type::Request>;
        using Response = std::shared_ptr<typename Type::Response>;
        const std::function<void(Request, Response)> serve = callback;
        wires().service = [serve](const void * request, void * response) {
            serve(*static_cast<const Request *>(request), *static_cast<Response *>(response));
        };
        return std::make_shared<Service<Type>>();
    }
    template <typename Duration, typename Callback>
    TimerBase::SharedPtr create_wall_timer(Duration period, Callback && callback)
    {
        wires().period_s = std::chrono::duration<double>(period).count();
        wires().timer = callback;
        return std::make_shared<TimerBase>();
    }

private:
    std::string name_;
};

// Of the program that drives the node.
void init(int argc, char ** argv);
void spin(const std::shared_ptr<Node> & node);
inline void shutdown() {}
}  // namespace rclcpp

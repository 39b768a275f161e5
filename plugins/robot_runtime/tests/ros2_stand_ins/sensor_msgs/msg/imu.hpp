#pragma once
namespace sensor_msgs::msg
{
struct Imu
{
    struct { double x, y, z, w; } orientation{};
    struct { double x, y, z; } angular_velocity{};
};
}  // namespace sensor_msgs::msg

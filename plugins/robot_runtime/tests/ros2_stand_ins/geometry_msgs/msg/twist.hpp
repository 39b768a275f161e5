#pragma once
namespace geometry_msgs::msg
{
struct Twist
{
    struct { double x, y, z; } linear{}, angular{};
};
}  // namespace geometry_msgs::msg

#pragma once
#include <cstdint>
#include <string>
#include <vector>
namespace std_msgs::msg
{
struct Float64MultiArray
{
    struct Dimension { std::string label; std::uint32_t size = 0, stride = 0; };
    struct { std::vector<Dimension> dim; std::uint32_t data_offset = 0; } layout;
    std::vector<double> data;
};
}  // namespace std_msgs::msg

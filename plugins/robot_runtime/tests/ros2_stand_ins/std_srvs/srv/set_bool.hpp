#pragma once
#include <string>
namespace std_srvs::srv
{
struct SetBool
{
    struct Request { bool data = false; };
    struct Response { bool success = false; std::string message; };
};
}  // namespace std_srvs::srv

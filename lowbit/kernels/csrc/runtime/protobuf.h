// Protobuf messages, field by field; every length is checked, since files may be damaged.
#pragma once
#include "runtime/runtime.h"

namespace lowbit::runtime {

[[noreturn]] inline void damaged(const char* what) {
    throw Error(std::string("the file is damaged or no ONNX model: ") + what);
}

// One message: fields are read in order until there are none left.
class Message {
  public:
    Message(const uint8_t* bytes, size_t size) : at_(bytes), end_(bytes + size) {}

    // Moves to the next field; false at the end.
    bool next() {
        if (at_ == end_) return false;
        const uint64_t tag = varint();
        field_ = tag >> 3;
        wire_ = static_cast<int>(tag & 7);
        if (field_ == 0) damaged("a field has the number 0");
        switch (wire_) {
            case 0:
                value_ = varint();
                break;
            case 1:
                value_ = fixed(8);
                break;
            case 5:
                value_ = fixed(4);
                break;
            case 2: {
                const uint64_t length = varint();
                if (length > static_cast<uint64_t>(end_ - at_)) damaged("a field is longer than the file");
                data_ = at_;
                length_ = static_cast<size_t>(length);
                at_ += length_;
                break;
            }
            default:
                damaged("a field of an unknown kind");
        }
        return true;
    }

    uint64_t field() const { return field_; }

    int64_t integer() const {
        if (wire_ != 0) damaged("a number is missing");
        return static_cast<int64_t>(value_);
    }
    float floating() const {
        if (wire_ != 5) damaged("a float is missing");
        const uint32_t bits = static_cast<uint32_t>(value_);
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
    std::string text() const {
        need_bytes();
        return std::string(reinterpret_cast<const char*>(data_), length_);
    }
    Message message() const {
        need_bytes();
        return Message(data_, length_);
    }
    const uint8_t* data() const {
        need_bytes();
        return data_;
    }
    size_t length() const { return length_; }

    // Repeated numbers, packed or one per field.
    void append(std::vector<int64_t>& to) const {
        if (wire_ == 0) {
            to.push_back(static_cast<int64_t>(value_));
        } else {
            Message inner = message();
            while (inner.at_ != inner.end_) to.push_back(static_cast<int64_t>(inner.varint()));
        }
    }
    void append(std::vector<float>& to) const {
        if (wire_ == 5) {
            to.push_back(floating());
            return;
        }
        need_bytes();
        if (length_ % 4) damaged("a list of floats is cut");
        const size_t before = to.size();
        to.resize(before + length_ / 4);
        if (length_) memcpy(to.data() + before, data_, length_);
    }

  private:
    void need_bytes() const {
        if (wire_ != 2) damaged("a text or message is missing");
    }
    uint64_t varint() {
        uint64_t value = 0;
        for (int shift = 0; shift < 64; shift += 7) {
            if (at_ == end_) damaged("a number is cut");
            const uint8_t byte = *at_++;
            value |= static_cast<uint64_t>(byte & 0x7f) << shift;
            if (!(byte & 0x80)) return value;
        }
        damaged("a number is too long");
    }
    uint64_t fixed(int count) {
        if (end_ - at_ < count) damaged("a number is cut");
        uint64_t value = 0;
        memcpy(&value, at_, static_cast<size_t>(count));
        at_ += count;
        return value;
    }

    const uint8_t* at_;
    const uint8_t* end_;
    uint64_t field_ = 0, value_ = 0;
    int wire_ = 0;
    const uint8_t* data_ = nullptr;
    size_t length_ = 0;
};

}  // namespace lowbit::runtime

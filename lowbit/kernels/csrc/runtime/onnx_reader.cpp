// Protobuf bytes to a graph: only the fields that inference needs. See onnx_reader.h.
#include "runtime/onnx_reader.h"
#include "runtime/protobuf.h"

#include <unordered_map>

namespace lowbit::runtime {
namespace {

Type known_type(int64_t number, const std::string& name) {
    switch (number) {
        case 1:
        case 2:
        case 3:
        case 6:
        case 7:
        case 9:
        case 21:
        case 22:
            return static_cast<Type>(number);
        default:
            throw Error("tensor \"" + name +
                        "\" has an element type that the runtime does not know (ONNX number " +
                        std::to_string(number) + ")");
    }
}

Dims to_dims(const std::vector<int64_t>& sizes) {
    Dims dims;
    for (int64_t size : sizes) dims.push(size);
    return dims;
}

template <class T>
void convert(const std::vector<int64_t>& from, uint8_t* to) {
    for (size_t i = 0; i < from.size(); i++) {
        const T value = static_cast<T>(from[i]);
        memcpy(to + i * sizeof(T), &value, sizeof(T));
    }
}

// Two integers of 4 bits per byte, the first in the lower half, to one per byte.
void unpack_nibbles(const std::vector<uint8_t>& packed, bool is_signed, std::vector<uint8_t>& to) {
    for (size_t i = 0; i < to.size(); i++) {
        const uint8_t nibble = packed[i / 2] >> (i % 2 ? 4 : 0) & 15;
        to[i] = is_signed ? static_cast<uint8_t>(static_cast<int8_t>(nibble << 4) >> 4) : nibble;
    }
}

std::shared_ptr<Tensor> read_tensor(Message message, std::string* name) {
    std::vector<int64_t> sizes, numbers;
    std::vector<float> floats;
    int64_t type = 0;
    const uint8_t* raw = nullptr;
    size_t raw_size = 0;
    std::string own_name;
    while (message.next()) {
        switch (message.field()) {
            case 1:
                message.append(sizes);
                break;
            case 2:
                type = message.integer();
                break;
            case 4:
                message.append(floats);
                break;
            case 5:
            case 7:
                message.append(numbers);
                break;
            case 8:
                own_name = message.text();
                break;
            case 9:
                raw = message.data(), raw_size = message.length();
                break;
            case 13:
                throw Error("tensor \"" + own_name +
                            "\" is stored outside of the file, which is not supported");
            default:
                break;
        }
    }
    if (name) *name = own_name;
    const Dims dims = to_dims(sizes);
    check_dims(dims, "tensor \"" + own_name + "\"");
    const Type known = known_type(type, own_name);
    const bool halves = known == Type::int4 || known == Type::uint4;
    const size_t count = static_cast<size_t>(dims.count());
    // Bytes that the file has to hold, compared before memory is taken for a damaged size.
    const size_t stored = halves ? (count + 1) / 2 : count * static_cast<size_t>(type_bytes(known));
    const size_t given = raw                      ? raw_size
                         : known == Type::float32 ? floats.size() * 4
                         : halves                 ? numbers.size()
                                                  : numbers.size() * static_cast<size_t>(type_bytes(known));
    check(given == stored, "tensor \"" + own_name + "\" has " + std::to_string(given) +
                               " bytes, its shape needs " + std::to_string(stored));
    auto tensor = std::make_shared<Tensor>(known, dims);
    if (!count) return tensor;
    uint8_t* to = tensor->bytes.data();
    if (halves) {
        std::vector<uint8_t> packed(stored);
        if (raw) {
            memcpy(packed.data(), raw, stored);
        } else {
            convert<uint8_t>(numbers, packed.data());
        }
        unpack_nibbles(packed, known == Type::int4, tensor->bytes);
    } else if (raw) {
        memcpy(to, raw, stored);
    } else if (known == Type::float32) {
        memcpy(to, floats.data(), stored);
    } else if (known == Type::int64) {
        convert<int64_t>(numbers, to);
    } else if (known == Type::int32) {
        convert<int32_t>(numbers, to);
    } else {
        convert<uint8_t>(numbers, to);
    }
    return tensor;
}

Attribute read_attribute(Message message, std::string& name) {
    Attribute attribute;
    while (message.next()) {
        switch (message.field()) {
            case 1:
                name = message.text();
                break;
            case 2:
                attribute.f = message.floating();
                break;
            case 3:
                attribute.i = message.integer();
                break;
            case 4:
                attribute.s = message.text();
                break;
            case 5:
                attribute.tensor = read_tensor(message.message(), nullptr);
                break;
            case 7:
                message.append(attribute.floats);
                break;
            case 8:
                message.append(attribute.ints);
                break;
            default:
                break;
        }
    }
    return attribute;
}

class Reader {
  public:
    Graph read(Message model) {
        bool found = false;
        std::vector<Message> graphs;
        while (model.next()) {
            if (model.field() == 7) graphs.push_back(model.message()), found = true;
            if (model.field() == 8) read_opset(model.message());
        }
        if (!found || graphs.size() != 1) damaged("it holds no graph");
        read_graph(graphs[0]);
        return std::move(graph_);
    }

  private:
    void read_opset(Message opset) {
        std::string domain;
        int64_t version = 0;
        while (opset.next()) {
            if (opset.field() == 1) domain = opset.text();
            if (opset.field() == 2) version = opset.integer();
        }
        if (domain.empty() || domain == "ai.onnx") graph_.opset = version;
    }

    // Constants and inputs first: they may stand behind the nodes that read them.
    void read_graph(const Message& graph) {
        for (Message part = graph; part.next();) {
            if (part.field() != 5) continue;
            std::string name;
            auto tensor = read_tensor(part.message(), &name);
            const int number = define(name);
            graph_.constants[number] = std::move(tensor);
        }
        for (Message part = graph; part.next();) {
            if (part.field() == 11) read_input(part.message());
        }
        for (Message part = graph; part.next();) {
            if (part.field() == 1) read_node(part.message());
            if (part.field() == 15) throw Error("sparse constants are not supported");
        }
        for (Message part = graph; part.next();) {
            if (part.field() == 12)
                graph_.outputs.push_back(use(value_name(part.message()), "the graph's outputs"));
        }
        check(!graph_.outputs.empty(), "the graph has no outputs");
    }

    static std::string value_name(Message value) {
        std::string name;
        while (value.next()) {
            if (value.field() == 1) name = value.text();
        }
        return name;
    }

    void read_input(Message value) {
        const std::string name = value_name(value);
        if (numbers_.count(name) && graph_.constants.count(numbers_[name]))
            return;  // a constant with a default
        int64_t type = 0;
        Dims dims;
        while (value.next()) {
            if (value.field() != 2) continue;
            Message outer = value.message();
            while (outer.next()) {
                if (outer.field() != 1) throw Error("input \"" + name + "\" is no tensor");
                Message tensor = outer.message();
                while (tensor.next()) {
                    if (tensor.field() == 1) type = tensor.integer();
                    if (tensor.field() == 2) dims = read_shape(tensor.message());
                }
            }
        }
        graph_.inputs.push_back({define(name), known_type(type, name), dims});
    }

    static Dims read_shape(Message shape) {
        Dims dims;
        while (shape.next()) {
            if (shape.field() != 1) continue;
            int64_t size = -1;
            Message dim = shape.message();
            while (dim.next()) {
                if (dim.field() == 1) size = dim.integer();
            }
            dims.push(size < 0 ? -1 : size);
        }
        return dims;
    }

    void read_node(Message message) {
        Node node;
        std::vector<std::string> inputs, outputs;
        std::string domain;
        while (message.next()) {
            switch (message.field()) {
                case 1:
                    inputs.push_back(message.text());
                    break;
                case 2:
                    outputs.push_back(message.text());
                    break;
                case 3:
                    node.name = message.text();
                    break;
                case 4:
                    node.kind = message.text();
                    break;
                case 5: {
                    std::string name;
                    Attribute attribute = read_attribute(message.message(), name);
                    node.attributes[name] = std::move(attribute);
                    break;
                }
                case 7:
                    domain = message.text();
                    break;
                default:
                    break;
            }
        }
        check(!outputs.empty(), "a node " + node.kind + " has no output");
        if (node.name.empty()) node.name = outputs[0];
        check(domain.empty() || domain == "ai.onnx",
              "operator " + domain + "." + node.kind + " (node \"" + node.name + "\") is not supported");
        for (const std::string& name : inputs) {
            node.inputs.push_back(name.empty() ? kAbsent : use(name, node.describe()));
        }
        for (const std::string& name : outputs) node.outputs.push_back(name.empty() ? kAbsent : define(name));
        graph_.nodes.push_back(std::move(node));
    }

    int define(const std::string& name) {
        check(!name.empty(), "a tensor has no name");
        const int number = static_cast<int>(graph_.names.size());
        check(numbers_.emplace(name, number).second, "two tensors are called \"" + name + "\"");
        graph_.names.push_back(name);
        return number;
    }

    int use(const std::string& name, const std::string& reader) const {
        const auto found = numbers_.find(name);
        check(found != numbers_.end(), reader + " reads \"" + name + "\", which nothing before it computes");
        return found->second;
    }

    Graph graph_;
    std::unordered_map<std::string, int> numbers_;
};

}  // namespace

Graph read_onnx(const uint8_t* bytes, size_t size) {
    if (!size) damaged("it is empty");
    return Reader().read(Message(bytes, size));
}

}  // namespace lowbit::runtime

// Differentiable functions written by users, in any translation unit:
//
//   struct Scale : Function<Scale> {
//     static Tensor forward(FunctionContext& ctx, const Tensor& x, double factor) {
//       ctx.number["factor"] = factor;
//       return x * factor;
//     }
//     static std::vector<Tensor> backward(FunctionContext& ctx, const Tensor& grad) {
//       return {grad * ctx.number["factor"]};
//     }
//   };
//   Tensor y = Scale::apply(x, 2.0);
//
// forward runs unrecorded. backward returns one gradient for each Tensor argument, in order; undefined = none.
#pragma once

#include <map>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include <limpid/autograd/functions.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/node.h>

namespace limpid {

// The name of a C++ type as written ("Scale").
std::string type_name(const std::type_info& type);

class FunctionContext {
 public:
  // Keeps a tensor for backward; overwriting it before backward is an error. Results may be saved too.
  void save(const Tensor& tensor) { to_save_.push_back(tensor); }
  // The i-th saved tensor, in backward.
  const Tensor& saved(std::size_t i) const {
    LIMPID_CHECK(node_ && i < saved_.size(), IndexError, "[function] saved tensor ", i, " of ", saved_.size());
    return saved_[i].unpack(*node_);
  }
  bool needs_input_grad(int i) const { return node_->needs_input_grad(i); }
  std::map<std::string, double> number;  // constants
  std::map<std::string, Shape> shape;

 private:
  template <class F>
  friend class Function;
  template <class F>
  friend class FunctionNode;
  std::vector<Tensor> to_save_;
  std::vector<SavedTensor> saved_;
  const Node* node_ = nullptr;
};

template <class F>
class FunctionNode final : public Node {
 public:
  explicit FunctionNode(NameId name) : Node(name) {}
  void backward(std::span<const Tensor> grads, std::span<Tensor> input_grads) override {
    if (!grads[0].defined()) return;
    std::vector<Tensor> results = F::backward(context, grads[0]);
    LIMPID_CHECK(results.size() == input_grads.size(), AutogradError, "[", name(), "] backward returned ", results.size(),
                 " gradients for ", input_grads.size(), " tensor arguments");
    for (std::size_t i = 0; i < results.size(); i++) {
      LIMPID_CHECK(!results[i].defined() || (results[i].shape() == arguments[i].shape && results[i].dtype() == arguments[i].dtype),
                   ShapeError, "[", name(), "] backward returned ", results[i], " for argument ", i, ", which is ",
                   arguments[i].dtype, arguments[i].shape);
      input_grads[i] = std::move(results[i]);
    }
  }
  void visit_saved(const SavedVisitor& visit) const override {
    for (const SavedTensor& s : context.saved_) visit("saved", s);
  }
  void release_saved() override { context.saved_.clear(); }
  FunctionContext context;
  struct Argument {
    Shape shape;
    DType dtype;
  };
  std::vector<Argument> arguments;  // the tensors among them
};

template <class F>
class Function {
 public:
  template <class... Args>
  static Tensor apply(const Args&... args) {
    static const NameId name = intern(type_name(typeid(F)));
    auto node = make_ref<FunctionNode<F>>(name);
    Tensor result;
    {
      NoGradGuard no_grad;
      OpScope scope(name);
      result = F::forward(node->context, args...);
    }
    bool record = false;
    (
        [&] {
          if constexpr (std::is_same_v<Args, Tensor>) {
            record |= grad_enabled() && args.requires_grad();
            node->add_input(args);
            node->arguments.push_back({args.shape(), args.dtype()});
          }
        }(),
        ...);
    if (record) {
      // A forward that returns its argument must not hang its own node on it.
      if ((is_same_tensor(result, args) || ...)) result = result.detach();
      node->add_output(result);
      for (const Tensor& t : node->context.to_save_) node->context.saved_.emplace_back(t.is_same(result) ? t.detach() : t);
      node->context.node_ = node.get();
    }
    node->context.to_save_.clear();
    return result;
  }

 private:
  template <class T>
  static bool is_same_tensor(const Tensor& result, const T& arg) {
    if constexpr (std::is_same_v<T, Tensor>) {
      return result.is_same(arg);
    } else {
      return false;
    }
  }
};

}  // namespace limpid

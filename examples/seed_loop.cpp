// The training loop that limpid grew from: 1,000 random images, a small network, Adam, five epochs. The PyTorch
// original stands line by line in the comments. Small run: seed_loop --samples 48 --size 32 --epochs 2
#include <cstdio>

#include <limpid/limpid.h>

#include "arguments.h"

using namespace limpid;

static int example(const Arguments& arguments) {
  const std::int64_t samples = arguments["--samples"];
  const std::int64_t size = arguments["--size"];
  const std::int64_t epochs = arguments["--epochs"];

  manual_seed(0);                                            // torch.manual_seed(0)
  Tensor x = randn({samples, 3, size, size});                // x = torch.randn(1000, 3, 224, 224)
  Tensor y = randint(0, 10, {samples});                      // y = torch.randint(0, 10, (1000,))
  data::TensorDataset dataset(x, y);                         // dataset = TensorDataset(x, y)
  data::DataLoader loader(dataset, {.batch_size = 16,        // loader = DataLoader(dataset, batch_size=16,
                                    .shuffle = true,         //                     shuffle=True,
                                    .num_workers = 4});      //                     num_workers=4)
  nn::Sequential model(                                      // model = nn.Sequential(
      nn::Conv2d({.in_channels = 3,                          //     nn.Conv2d(3, 64, kernel_size=3),
                  .out_channels = 64,                        //
                  .kernel_size = 3}),                        //
      nn::ReLU(),                                            //     nn.ReLU(),
      nn::AdaptiveAvgPool2d(1),                              //     nn.AdaptiveAvgPool2d(1),
      nn::Flatten(),                                         //     nn.Flatten(),
      nn::Linear({.in_features = 64, .out_features = 10}));  //     nn.Linear(64, 10))
  optim::Adam optimizer(model.parameters(), {.lr = 1e-3});  // optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
  nn::CrossEntropyLoss criterion;                           // criterion = nn.CrossEntropyLoss()

  for (std::int64_t epoch = 0; epoch < epochs; epoch++) {  // for epoch in range(5):
    double running_loss = 0;                               //     running_loss = 0.0
    for (auto& [inputs, labels] : loader) {                //     for inputs, labels in loader:
      optimizer.zero_grad();                               //         optimizer.zero_grad()
      Tensor outputs = model(inputs);                      //         outputs = model(inputs)
      Tensor loss = criterion(outputs, labels);            //         loss = criterion(outputs, labels)
      loss.backward();                                     //         loss.backward()
      optimizer.step();                                    //         optimizer.step()
      running_loss += loss.item();                         //         running_loss += loss.item()
    }
    std::printf("epoch %d: loss %.4f\n", static_cast<int>(epoch + 1),
                running_loss / static_cast<double>(loader.size()));
  }

  // What PyTorch does not tell: where every byte was when the most were in use.
  std::printf("\n%s", to_string(memory::host_allocator().ledger_at_peak()).c_str());
  std::printf("\nThe loader's pool:\n%s", to_string(memory::io_allocator().ledger_at_peak()).c_str());
  return 0;
}

int main(int argc, char** argv) {
  return run_example(argc, argv,
                     {.shows = "The training loop that limpid grew from, beside its PyTorch original in the comments, "
                               "and where every byte was.",
                      .options = {{"--samples", 1000, "Random images"},
                                  {"--size", 224, "Side of an image", 3},
                                  {"--epochs", 5, "Passes over them"}},
                      .small_run = "--samples 48 --size 32 --epochs 2"},
                     example);
}

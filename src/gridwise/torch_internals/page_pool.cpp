// Tensors of a CPU in memory that is used again, whatever its size, so that a thread's tensors never take more than a budget.
//
//     freed block      kept, with its pages, until the budget is needed for others; the oldest goes first
//     wanted block     one that was kept, if it has the size; else new memory while the budget lasts;
//                      else the pages of kept blocks, moved to new addresses: nothing is copied and nothing is cleared
//
// A page that the system has to clear costs fifteen times as much as one that is moved (`mremap`). Only threads that are
// `inside` take blocks from the pool; all others, and small blocks, get memory as before.

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr size_t UNIT = 16 << 10;      // sizes are multiples of it
constexpr size_t SMALLEST = 64 << 10;  // smaller blocks are left to the C library
constexpr size_t MOST_BLOCKS = 4096;   // in a budget: a process has some 65,000 mappings
constexpr size_t MOST_PIECES = 12;     // a block of more is given back, not moved
constexpr size_t SLACK = 8;            // a kept block may be larger by an eighth than what is wanted

thread_local int inside = 0;

struct Block {
  char* at = nullptr;
  size_t size = 0;
  std::vector<size_t> pieces;  // the sizes of the mappings that it consists of, in their order
  size_t call = 0;             // in which it was taken
};

class PagePool final : public c10::Allocator {
 public:
  explicit PagePool(c10::Allocator* before) : before_(before) {}

  void enter(size_t budget) {
    std::lock_guard<std::mutex> guard(mutex_);
    inside++;
    calls_++;
    budget_ += budget;
    smallest_ = SMALLEST;
    while (smallest_ < budget_ / MOST_BLOCKS) smallest_ *= 2;
  }

  void leave(size_t budget) {
    std::lock_guard<std::mutex> guard(mutex_);
    inside--;
    budget_ -= budget;
    if (--calls_ > 0) {
      shrink();
      return;
    }
    while (!kept_.empty()) drop_oldest();
    live_ = 0;  // what is still in use now is the user's, and goes when it is freed
    call_++;
  }

  c10::DataPtr allocate(size_t n) override {
    void* at = inside > 0 && n >= smallest_ ? take(n) : nullptr;
    if (at == nullptr) return before_->allocate(n);
    return {at, at, raw_deleter(), c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override;

  void copy_data(void* target, const void* source, size_t n) const override { default_copy_data(target, source, n); }

  // The most bytes that were in use at a time since the last call, and those that are kept now.
  void report(size_t* most, size_t* kept) {
    std::lock_guard<std::mutex> guard(mutex_);
    *most = std::exchange(most_, live_);
    *kept = kept_bytes_;
  }

  // Takes back what is its own, or what the allocator before it has made.
  void free(void* at) {
    if (at != nullptr && !give(at)) before_->raw_deleter()(at);
  }

 private:
  using Kept = std::list<Block>;

  void* take(size_t n) {
    const size_t size = (n + UNIT - 1) / UNIT * UNIT;
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = by_size_.lower_bound(size);
    const bool is_there = found != by_size_.end() && found->first <= size + size / SLACK;
    Block block = is_there ? out_of_kept(found->second) : assembled(size);
    if (block.at == nullptr) return nullptr;
    block.call = call_;
    live_ += block.size;
    most_ = std::max(most_, live_);
    void* at = block.at;
    used_.emplace(at, std::move(block));
    return at;
  }

  bool give(void* at) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = used_.find(at);
    if (found == used_.end()) return false;
    Block block = std::move(found->second);
    used_.erase(found);
    if (block.call != call_ || calls_ == 0) {
      munmap(block.at, block.size);
      return true;
    }
    live_ -= block.size;
    keep(std::move(block), true);
    shrink();
    return true;
  }

  void keep(Block block, bool is_youngest) {
    kept_bytes_ += block.size;
    auto place = kept_.insert(is_youngest ? kept_.begin() : kept_.end(), std::move(block));
    by_size_.emplace(place->size, place);
  }

  Block out_of_kept(Kept::iterator place) {
    auto [first, last] = by_size_.equal_range(place->size);
    by_size_.erase(std::find_if(first, last, [&](const auto& pair) { return pair.second == place; }));
    kept_bytes_ -= place->size;
    Block block = std::move(*place);
    kept_.erase(place);
    return block;
  }

  void drop_oldest() {
    Block block = out_of_kept(std::prev(kept_.end()));
    munmap(block.at, block.size);
  }

  void shrink() {
    while (!kept_.empty() && live_ + kept_bytes_ > budget_) drop_oldest();
  }

  static void* mapped(size_t size, void* at = nullptr) {
    const int fixed = at == nullptr ? 0 : MAP_FIXED;
    void* found = mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
    return found == MAP_FAILED ? nullptr : found;
  }

  // A block of pages that others have left, as far as the budget has no room for new ones.
  Block assembled(size_t size) {
    Block made;
    made.at = static_cast<char*>(mapped(size));
    while (made.at == nullptr && !kept_.empty()) {  // perhaps another limit, of the process, has no room
      drop_oldest();
      made.at = static_cast<char*>(mapped(size));
    }
    if (made.at == nullptr) return made;
    made.size = size;
    const size_t wanted = live_ + kept_bytes_ + size;
    const size_t over = std::min({wanted > budget_ ? wanted - budget_ : 0, size, kept_bytes_});
    const size_t moved = (over + UNIT - 1) / UNIT * UNIT;
    size_t done = 0;
    while (done < moved && !kept_.empty()) {
      if (kept_.back().pieces.size() > MOST_PIECES) {
        done += kept_.back().size;  // which the budget has room for now
        drop_oldest();
        continue;
      }
      Block old = out_of_kept(std::prev(kept_.end()));
      while (!old.pieces.empty() && done < moved) done += move_last(old, made, moved - done);
      if (old.size > 0) keep(std::move(old), false);
    }
    const size_t filled = made.pieces.empty() ? 0 : filled_of(made);
    if (filled < size) made.pieces.push_back(size - filled);
    shrink();
    return made;
  }

  static size_t filled_of(const Block& block) {
    size_t sum = 0;
    for (size_t piece : block.pieces) sum += piece;
    return sum;
  }

  // Move the end of a block's last piece behind what is filled of another.
  static size_t move_last(Block& old, Block& made, size_t most) {
    const size_t filled = filled_of(made);
    const size_t part = std::min({old.pieces.back(), most, made.size - filled});
    char *source = old.at + old.size - part, *target = made.at + filled;
    if (mremap(source, part, part, MREMAP_MAYMOVE | MREMAP_FIXED, target) == MAP_FAILED) {
      munmap(source, part);
      if (mapped(part, target) == nullptr) throw std::bad_alloc();
    }
    made.pieces.push_back(part);
    old.size -= part;
    old.pieces.back() -= part;
    if (old.pieces.back() == 0) old.pieces.pop_back();
    return part;
  }

  c10::Allocator* before_;
  std::mutex mutex_;
  std::unordered_map<void*, Block> used_;
  Kept kept_;  // the youngest first
  std::multimap<size_t, Kept::iterator> by_size_;
  size_t budget_ = 0, live_ = 0, most_ = 0, kept_bytes_ = 0, smallest_ = SMALLEST, calls_ = 0, call_ = 0;
};

PagePool* pool = nullptr;  // for ever: tensors may outlive everything else

void free_block(void* at) { pool->free(at); }

c10::DeleterFnPtr PagePool::raw_deleter() const { return &free_block; }

}  // namespace

extern "C" {

void page_pool_install() {
  if (pool == nullptr) {
    pool = new PagePool(c10::GetCPUAllocator());
    c10::SetCPUAllocator(pool, 255);
  }
}

void page_pool_enter(size_t budget) { pool->enter(budget); }

void page_pool_leave(size_t budget) { pool->leave(budget); }

void page_pool_report(size_t* most, size_t* kept) { pool->report(most, kept); }

// How deep this thread is inside from now on, 0 for not at all; returned is how deep it was.
int page_pool_depth(int depth) { return std::exchange(inside, depth); }
}

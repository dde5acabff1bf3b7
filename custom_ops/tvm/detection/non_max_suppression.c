/* ONNX NonMaxSuppression for x86-64 with AVX2 or AVX-512: a unit is one class of one image.
 *
 * Boxes are chosen as ONNX Runtime's kernel chooses them, bit for bit. Scores are compared as float32. Of equal
 * scores the first box is better. Overlaps are computed in float32 by the same operations in the same order,
 * none of them contracted. Vectors hold one box that is looked at beside several that were chosen before it.
 *
 * LANES (8 or 16) and IS_CENTER (boxes are a center and two extents, else two corners) are defined in front. */
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if LANES == 16
#define TARGET __attribute__((target("avx512f,avx2,popcnt")))
typedef __m512 Vector;
typedef __mmask16 Lanes;
#define LOAD _mm512_loadu_ps
#define ALL _mm512_set1_ps
#define ADD _mm512_add_ps
#define SUBTRACT _mm512_sub_ps
#define MULTIPLY _mm512_mul_ps
#define DIVIDE _mm512_div_ps
/* The second operand where they are equal or one is a NaN. */
#define SMALLER _mm512_min_ps
#define LARGER _mm512_max_ps
#define IS_GREATER(a, b) _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define IS_NOT_AT_MOST(a, b) _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ)
#define IS_NAN(a) _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q)
#else
#define TARGET __attribute__((target("avx2,popcnt")))
typedef __m256 Vector;
typedef uint32_t Lanes;
#define LOAD _mm256_loadu_ps
#define ALL _mm256_set1_ps
#define ADD _mm256_add_ps
#define SUBTRACT _mm256_sub_ps
#define MULTIPLY _mm256_mul_ps
#define DIVIDE _mm256_div_ps
#define SMALLER _mm256_min_ps
#define LARGER _mm256_max_ps
#define IS_GREATER(a, b) (Lanes) _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ))
#define IS_NOT_AT_MOST(a, b) (Lanes) _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLE_UQ))
#define IS_NAN(a) (Lanes) _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q))
#endif

/* Lists up to here are ordered by counting what is better than each, longer ones by a heap. */
#define MOST_COUNTED 192
/* A table of what suppresses what pays for some classes at least, and for no more boxes. */
#define LEAST_CLASSES 4
#define MOST_IN_TABLE 1024

enum { OK, IOU_OUT_OF_RANGE, SIZES_DIFFER, NO_MEMORY, MORE };

/* The rows that a unit counts: memory of malloc; see OrtkitRows of the manifest. */
typedef struct Rows {
  void* data;
  int64_t count;
} Rows;

/* What all units read. */
typedef struct Task {
  const float* boxes;   /* [images, count, 4] */
  const float* scores;  /* [images, classes, count] */
  int64_t classes;
  int64_t count;
  int64_t most;         /* of a class, more than 0 */
  float iou_threshold;
  int has_score_threshold;
  float score_threshold;
} Task;

/* The edges of a box: smallest and largest. */
typedef struct Box {
  float x_min, x_max, y_min, y_max, area;
} Box;

/* Edges of many boxes, in vectors; lanes behind the last one overlap nothing. */
typedef struct Boxes {
  float *x_min, *x_max, *y_min, *y_max, *area;
  int64_t count, capacity;
} Boxes;

/* Which boxes of an image each of them suppresses: the same for all of its classes. */
typedef struct Table {
  int64_t image;     /* -1: none yet */
  int64_t words;     /* of a row; 0: there is no table */
  Boxes boxes;
  uint64_t* rows;    /* [count, words], a bit for each box */
  uint8_t* is_made;  /* [count] */
  uint64_t* gone;    /* [words]: what is suppressed in this class */
} Table;

/* Memory of one call. */
typedef struct Scratch {
  uint64_t* keys;    /* [count]: of boxes above the threshold */
  uint64_t* sorted;  /* [MOST_COUNTED] */
  Boxes chosen;      /* of this class */
  int64_t* numbers;  /* [count]: of the chosen boxes */
  Table table;
} Scratch;

/* ---- boxes */
static inline float FloatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline Box ReadBox(const float* box) {
  Box found;
#if IS_CENTER
  const float half_width = box[2] / 2, half_height = box[3] / 2;
  found.x_min = box[0] - half_width;
  found.x_max = box[0] + half_width;
  found.y_min = box[1] - half_height;
  found.y_max = box[1] + half_height;
#else
  const int is_x_flipped = box[1] >= box[3], is_y_flipped = box[0] >= box[2];
  found.x_min = is_x_flipped ? box[3] : box[1];
  found.x_max = is_x_flipped ? box[1] : box[3];
  found.y_min = is_y_flipped ? box[2] : box[0];
  found.y_max = is_y_flipped ? box[0] : box[2];
#endif
  found.area = (found.x_max - found.x_min) * (found.y_max - found.y_min);
  return found;
}

/* Which of some boxes overlap one by more than a threshold.
 *
 * Where the definition says that there is no overlap if a comparison holds, one that fails for NaN is negated. */
TARGET static inline __attribute__((always_inline)) Lanes Overlaps(
    Vector left, Vector right, Vector top, Vector bottom, Vector first_area, Vector second_area, Vector limit) {
  const Vector zero = ALL(0.0f);
  Lanes lanes = IS_NOT_AT_MOST(right, left) & IS_NOT_AT_MOST(bottom, top);
  if (lanes == 0) return 0;
  const Vector common = MULTIPLY(SUBTRACT(right, left), SUBTRACT(bottom, top));
  const Vector either = SUBTRACT(ADD(first_area, second_area), common);
  lanes &= IS_NOT_AT_MOST(common, zero) & IS_NOT_AT_MOST(either, zero);
  lanes &= IS_NOT_AT_MOST(first_area, zero) & IS_NOT_AT_MOST(second_area, zero);
  return lanes == 0 ? 0 : lanes & IS_GREATER(DIVIDE(common, either), limit);
}

/* Whether a box is suppressed by one that was chosen before it. */
TARGET static int IsSuppressed(const Boxes* chosen, const Box* box, float threshold) {
  const Vector x_min = ALL(box->x_min), x_max = ALL(box->x_max), y_min = ALL(box->y_min);
  const Vector y_max = ALL(box->y_max), area = ALL(box->area), limit = ALL(threshold);
  for (int64_t i = 0; i < chosen->count; i += LANES) {
    const Lanes lanes = Overlaps(LARGER(x_min, LOAD(chosen->x_min + i)), SMALLER(x_max, LOAD(chosen->x_max + i)),
                                 LARGER(y_min, LOAD(chosen->y_min + i)), SMALLER(y_max, LOAD(chosen->y_max + i)),
                                 LOAD(chosen->area + i), area, limit);
    if (lanes != 0) return 1;
  }
  return 0;
}

/* Makes the row of the table that says which boxes one suppresses. */
TARGET static void MakeRow(const Table* table, int64_t number, float threshold) {
  const Boxes* all = &table->boxes;
  const Vector x_min = ALL(all->x_min[number]), x_max = ALL(all->x_max[number]), y_min = ALL(all->y_min[number]);
  const Vector y_max = ALL(all->y_max[number]), area = ALL(all->area[number]), limit = ALL(threshold);
  uint64_t* row = table->rows + number * table->words;
  memset(row, 0, (size_t)table->words * sizeof *row);
  for (int64_t i = 0; i < all->count; i += LANES) {
    const Lanes lanes = Overlaps(LARGER(LOAD(all->x_min + i), x_min), SMALLER(LOAD(all->x_max + i), x_max),
                                 LARGER(LOAD(all->y_min + i), y_min), SMALLER(LOAD(all->y_max + i), y_max), area,
                                 LOAD(all->area + i), limit);
    row[i / 64] |= (uint64_t)lanes << i % 64;
  }
  table->is_made[number] = 1;
}

static void Append(Boxes* boxes, const Box* box) {
  const int64_t at = boxes->count++;
  if (at % LANES == 0) {
    for (int64_t i = at; i < at + LANES; ++i) {
      boxes->x_min[i] = boxes->y_min[i] = __builtin_inff();
      boxes->x_max[i] = boxes->y_max[i] = -__builtin_inff();
      boxes->area[i] = 0.0f;
    }
  }
  boxes->x_min[at] = box->x_min;
  boxes->x_max[at] = box->x_max;
  boxes->y_min[at] = box->y_min;
  boxes->y_max[at] = box->y_max;
  boxes->area[at] = box->area;
}

/* Lets there be room for as many boxes; those that were there stay. */
static int Reserve(Boxes* boxes, int64_t capacity) {
  if (capacity <= boxes->capacity) return OK;
  capacity = (capacity + 255) / 256 * 256;
  float* edges = malloc((size_t)capacity * 5 * sizeof *edges);
  if (edges == NULL) return NO_MEMORY;
  const Boxes before = *boxes;
  float** parts[] = {&boxes->x_min, &boxes->x_max, &boxes->y_min, &boxes->y_max, &boxes->area};
  for (int64_t i = 0; i < 5; ++i) {
    if (before.capacity != 0) memcpy(edges + i * capacity, *parts[i], (size_t)before.capacity * sizeof *edges);
    *parts[i] = edges + i * capacity;
  }
  free(before.x_min);
  boxes->capacity = capacity;
  return OK;
}

/* ---- the order of boxes: a key is larger the better its box is, and no two are equal */
static inline uint64_t KeyOf(float score, int64_t number) {
  uint32_t bits;
  score += 0.0f; /* both zeros are equal */
  memcpy(&bits, &score, sizeof bits);
  bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
  return (uint64_t)bits << 32 | (0xffffffffu - (uint32_t)number);
}

static inline int64_t NumberOf(uint64_t key) { return 0xffffffffu - (uint32_t)key; }

/* Writes the keys of boxes above the threshold; returns how many there are. `*has_nan` is set if a score is a
 * NaN, whose key means its box only. */
TARGET static int64_t ReadScores(const Task* task, const float* scores, uint64_t* keys, int* has_nan) {
  int64_t found = 0;
  const Vector limit = ALL(task->score_threshold);
  for (int64_t i = 0; i < task->count; i += LANES) {
    const int64_t left = task->count - i;
    float tail[LANES];
    const float* from = scores + i;
    Lanes lanes = LANES == 16 ? 0xffff : 0xff;
    if (left < LANES) {
      for (int64_t k = 0; k < LANES; ++k) tail[k] = k < left ? from[k] : 0.0f;
      lanes = (Lanes)((1u << left) - 1);
      from = tail;
    }
    const Vector values = LOAD(from);
    if (task->has_score_threshold) {
      lanes &= IS_GREATER(values, limit);
    } else if ((lanes & IS_NAN(values)) != 0) {
      *has_nan = 1;
    }
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const int64_t lane = __builtin_ctz(rest);
      keys[found++] = KeyOf(from[lane], i + lane);
    }
  }
  return found;
}

/* Orders a few keys, the best first: each goes where as many are better. */
TARGET static void Order(const uint64_t* keys, int64_t count, uint64_t* sorted) {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t key = keys[i];
    int64_t better = 0;
    for (int64_t k = 0; k < count; ++k) better += keys[k] > key;
    sorted[better] = key;
  }
}

/* Lets a key sink in a heap whose root is the best. */
static inline void Sink(uint64_t* heap, int64_t count, int64_t at) {
  const uint64_t key = heap[at];
  for (int64_t child; (child = 2 * at + 1) < count; at = child) {
    child += child + 1 < count && heap[child + 1] > heap[child];
    if (heap[child] < key) break;
    heap[at] = heap[child];
  }
  heap[at] = key;
}

/* With a NaN among the scores no order is left, and what is best depends on how a heap is kept. This is that of
 * C++'s std::priority_queue, made of all keys at once: what fills a place sinks to a leaf and rises again. */
static inline int IsWorse(const float* scores, uint64_t a, uint64_t b) {
  const int64_t i = NumberOf(a), k = NumberOf(b);
  return scores[i] < scores[k] || (scores[i] == scores[k] && i > k);
}

static void Fill(const float* scores, uint64_t* heap, int64_t count, const int64_t top, uint64_t key) {
  int64_t at = top;
  for (int64_t child; (child = 2 * at + 2) < count; at = child) {
    child -= IsWorse(scores, heap[child], heap[child - 1]);
    heap[at] = heap[child];
  }
  if (2 * at + 2 == count) {
    heap[at] = heap[count - 1];
    at = count - 1;
  }
  for (; at > top && IsWorse(scores, heap[(at - 1) / 2], key); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
  heap[at] = key;
}

/* ---- a class */
/* Lets a table be that of an image. */
static void Turn(const Task* task, Table* table, int64_t image) {
  if (table->words == 0 || table->image == image) return;
  table->image = image;
  table->boxes.count = 0;
  memset(table->is_made, 0, (size_t)task->count);
  for (int64_t i = 0; i < task->count; ++i) {
    const Box box = ReadBox(task->boxes + (image * task->count + i) * 4);
    Append(&table->boxes, &box);
  }
}

/* Whether a box is none of a class, in which `scratch` has what was chosen. */
static int IsOut(const Task* task, const Box* box, int64_t number, const Scratch* scratch) {
  const Table* table = &scratch->table;
  if (table->words != 0) return table->gone[number / 64] >> number % 64 & 1;
  return IsSuppressed(&scratch->chosen, box, task->iou_threshold);
}

static int Choose(const Task* task, const Box* box, int64_t number, Scratch* scratch) {
  const Table* table = &scratch->table;
  scratch->numbers[scratch->chosen.count] = number;
  if (table->words == 0) {
    const int64_t count = scratch->chosen.count;
    if (count == scratch->chosen.capacity && Reserve(&scratch->chosen, 2 * count) != OK) return NO_MEMORY;
    Append(&scratch->chosen, box);
    return OK;
  }
  if (!table->is_made[number]) MakeRow(table, number, task->iou_threshold);
  const uint64_t* row = table->rows + number * table->words;
  for (int64_t i = 0; i < table->words; ++i) table->gone[i] |= row[i];
  ++scratch->chosen.count;
  return OK;
}

/* Chooses a box unless it is suppressed; returns MORE until there are as many as wanted. */
static int Try(const Task* task, int64_t image, uint64_t key, Scratch* scratch) {
  const int64_t number = NumberOf(key);
  const Box box = ReadBox(task->boxes + (image * task->count + number) * 4);
  if (IsOut(task, &box, number, scratch)) return MORE;
  const int code = Choose(task, &box, number, scratch);
  return code != OK ? code : scratch->chosen.count < task->most ? MORE : OK;
}

/* Writes rows of [image, class, box] of what was chosen. */
static int WriteRows(const Scratch* scratch, int64_t image, int64_t label, Rows* rows) {
  const int64_t count = scratch->chosen.count;
  if (count == 0) return OK;
  int64_t* data = malloc((size_t)count * 3 * sizeof *data);
  if (data == NULL) return NO_MEMORY;
  for (int64_t i = 0; i < count; ++i) {
    data[3 * i] = image;
    data[3 * i + 1] = label;
    data[3 * i + 2] = scratch->numbers[i];
  }
  rows->data = data;
  rows->count = count;
  return OK;
}

static int SelectOne(const Task* task, int64_t unit, Scratch* scratch, Rows* rows) {
  const int64_t image = unit / task->classes, label = unit % task->classes;
  const float* scores = task->scores + unit * task->count;
  uint64_t* keys = scratch->keys;
  int has_nan = 0, code = MORE;
  int64_t left = ReadScores(task, scores, keys, &has_nan);
  Turn(task, &scratch->table, image);
  scratch->chosen.count = 0;
  if (scratch->table.words != 0) memset(scratch->table.gone, 0, (size_t)scratch->table.words * sizeof(uint64_t));
  if (has_nan) {
    for (int64_t i = left / 2 - 1; i >= 0; --i) Fill(scores, keys, left, i, keys[i]);
    while (left > 0 && code == MORE) {
      code = Try(task, image, keys[0], scratch);
      if (--left > 0) Fill(scores, keys, left, 0, keys[left]);
    }
  } else if (left <= MOST_COUNTED) {
    Order(keys, left, scratch->sorted);
    for (int64_t i = 0; i < left && code == MORE; ++i) code = Try(task, image, scratch->sorted[i], scratch);
  } else {
    for (int64_t i = left / 2 - 1; i >= 0; --i) Sink(keys, left, i);
    while (left > 0 && code == MORE) {
      code = Try(task, image, keys[0], scratch);
      keys[0] = keys[--left];
      if (left > 0) Sink(keys, left, 0);
    }
  }
  return code == NO_MEMORY ? NO_MEMORY : WriteRows(scratch, image, label, rows);
}

/* ---- memory */
static void Free(Scratch* scratch) {
  free(scratch->keys);
  free(scratch->sorted);
  free(scratch->chosen.x_min);
  free(scratch->numbers);
  free(scratch->table.boxes.x_min);
  free(scratch->table.rows);
  free(scratch->table.is_made);
  free(scratch->table.gone);
}

/* Lets there be a table, if several classes of an image have so few boxes that it pays. */
static int Prepare(const Task* task, int64_t units, Table* table) {
  const size_t count = (size_t)task->count, words = (count + 63) / 64;
  table->image = -1;
  if (units < LEAST_CLASSES || task->classes < LEAST_CLASSES || task->count > MOST_IN_TABLE) return OK;
  table->rows = malloc(count * words * sizeof *table->rows);
  table->is_made = malloc(count);
  table->gone = malloc(words * sizeof *table->gone);
  table->words = (int64_t)words;
  const int has_all = table->rows != NULL && table->is_made != NULL && table->gone != NULL;
  return has_all ? Reserve(&table->boxes, task->count) : NO_MEMORY;
}

/* Computes the classes begin .. end - 1, counted through all images. */
static int32_t Select(const Task* task, Rows* rows, int64_t begin, int64_t end) {
  if (!(task->iou_threshold >= 0.0f && task->iou_threshold <= 1.0f)) return IOU_OUT_OF_RANGE;
  if (task->most <= 0 || task->count == 0 || begin == end) return OK;
  if (task->count > 0xffffffff) return NO_MEMORY;
  Scratch scratch = {0};
  scratch.keys = malloc((size_t)task->count * sizeof *scratch.keys);
  scratch.sorted = malloc(MOST_COUNTED * sizeof *scratch.sorted);
  scratch.numbers = malloc((size_t)task->count * sizeof *scratch.numbers);
  const int has_all = scratch.keys != NULL && scratch.sorted != NULL && scratch.numbers != NULL;
  int code = has_all ? Prepare(task, end - begin, &scratch.table) : NO_MEMORY;
  if (code == OK) code = Reserve(&scratch.chosen, LANES);
  for (int64_t unit = begin; unit < end && code == OK; ++unit) code = SelectOne(task, unit, &scratch, &rows[unit]);
  Free(&scratch);
  return code;
}

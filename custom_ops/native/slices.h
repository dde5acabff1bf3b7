/* A kernel's units on the CPU in slices: how many units each has, and how one is computed.
 *
 * C11 and C++17: for the shim, and for the programs of OrtkitExecutionProvider. */
#ifndef ORTKIT_SLICES_H_
#define ORTKIT_SLICES_H_

#include <stddef.h>
#include <unistd.h>

#include "manifest.h"

/* A slice should outlast what handing it to another thread costs (a few microseconds). */
#define ORTKIT_SLICE_PICOSECONDS 16e6
/* A slice should take this many times what each slice does in addition to its units. */
#define ORTKIT_SLICE_SHARE 4
/* Units of single points are cut where full vectors begin. */
#define ORTKIT_SLICE_VECTOR 64
/* Slices of a kernel whose slices do some work each, for each core: others may be late. */
#define ORTKIT_SLICES_PER_CORE 2
/* What a thread claims should take this many times what each slice does in addition. */
#define ORTKIT_CLAIM_SHARE 8
/* Where there are fewer of the least claims for each core, slices are equal. */
#define ORTKIT_CLAIMS_PER_CORE 8

/* The work of one run. */
typedef struct OrtkitSlices {
  OrtkitCall call;
  char* const* data;
  const int64_t* sizes;
  int64_t units;
  int64_t slice;   /* units in one slice, but for the last; the least where threads claim some */
  int32_t failure; /* a code that a slice returned; 0: none */
  int64_t next;    /* the first unit that no thread has claimed */
} OrtkitSlices;

/* What units cost; see OrtkitOp. */
typedef struct OrtkitUnitCost {
  int64_t points;
  int64_t picoseconds_per_point;
  int64_t shared_nanoseconds;
  int64_t slice_picoseconds;
} OrtkitUnitCost;

/* The cores of this machine that are online; asked for once, as that reads a file. */
static inline int64_t OrtkitCores(void) {
  static int64_t known = 0;
  int64_t count = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (count == 0) {
    const int64_t online = sysconf(_SC_NPROCESSORS_ONLN);
    count = online > 0 ? online : 1;
    __atomic_store_n(&known, count, __ATOMIC_RELAXED);
  }
  return count;
}

/* Units in slices that are no smaller, of about equal size, and no more than the cores need. */
static inline int64_t OrtkitEvenSlice(int64_t units, int64_t slice) {
  const int64_t cores = OrtkitCores();
  int64_t slices = (units - 1) / slice + 1;
  if (slices > ORTKIT_SLICES_PER_CORE * cores) slices = ORTKIT_SLICES_PER_CORE * cores;
  if (slices > cores) slices -= slices % cores;
  return (units - 1) / slices + 1;
}

/* What one of `units` costs, in picoseconds. */
static inline double OrtkitUnitPicoseconds(int64_t units, const OrtkitUnitCost* cost) {
  const double shared = (double)cost->shared_nanoseconds * 1e3 / (double)units;
  return (double)cost->points * (double)cost->picoseconds_per_point + shared + 1;
}

/* The least time of a slice, which is a multiple of what a slice does in addition to its units. */
static inline double OrtkitLeastSlice(const OrtkitUnitCost* cost, double multiple) {
  const double extra = multiple * (double)cost->points * (double)cost->slice_picoseconds;
  return extra > ORTKIT_SLICE_PICOSECONDS ? extra : ORTKIT_SLICE_PICOSECONDS;
}

/* The units of one slice of `units`, by their cost. */
static inline int64_t OrtkitUnitsOfSlice(int64_t units, const OrtkitUnitCost* cost) {
  const double least = OrtkitLeastSlice(cost, ORTKIT_SLICE_SHARE);
  const double unit = OrtkitUnitPicoseconds(units, cost);
  if (unit * (double)units <= least) return units;
  int64_t slice = (int64_t)(least / unit) + 1;
  if (cost->slice_picoseconds != 0) return OrtkitEvenSlice(units, slice);
  if (cost->points == 1 && slice > ORTKIT_SLICE_VECTOR) {
    slice = (slice + ORTKIT_SLICE_VECTOR - 1) / ORTKIT_SLICE_VECTOR * ORTKIT_SLICE_VECTOR;
  }
  return slice < units ? slice : units;
}

/* The least units that a thread claims; 0 if slices are equal. */
static inline int64_t OrtkitUnitsOfClaim(int64_t units, const OrtkitUnitCost* cost) {
  if (cost->slice_picoseconds == 0) return 0;
  const double least = OrtkitLeastSlice(cost, ORTKIT_CLAIM_SHARE);
  const double unit = OrtkitUnitPicoseconds(units, cost);
  const double claims = ORTKIT_CLAIMS_PER_CORE * (double)OrtkitCores();
  return unit * (double)units < least * claims ? 0 : (int64_t)(least / unit) + 1;
}

/* Computes a slice of the OrtkitSlices at `user`, on whichever thread. */
static inline void OrtkitComputeSlice(void* user, size_t index) {
  OrtkitSlices* work = (OrtkitSlices*)user;
  const int64_t begin = (int64_t)index * work->slice;
  const int64_t left = work->units - begin;
  const int64_t end = begin + (left < work->slice ? left : work->slice);
  const int32_t code = work->call(work->data, work->sizes, begin, end);
  if (code != 0) __atomic_store_n(&work->failure, code, __ATOMIC_RELAXED);
}

/* Claims units of the OrtkitSlices at `user`, and computes them, until none are left.
 *
 * Threads are not equally fast where memory bounds them or other processes run. A claim is 4/5 of an
 * equal share of what is left, so that all threads end at about the same time. */
static inline void OrtkitComputeClaims(void* user, size_t index) {
  OrtkitSlices* work = (OrtkitSlices*)user;
  const int64_t parts = 5 * OrtkitCores();
  int64_t begin = __atomic_load_n(&work->next, __ATOMIC_RELAXED);
  (void)index;
  while (begin < work->units) {
    const int64_t left = work->units - begin;
    const int64_t wanted = left / parts * 4 > work->slice ? left / parts * 4 : work->slice;
    const int64_t end = begin + (wanted < left ? wanted : left);
    if (__atomic_compare_exchange_n(&work->next, &begin, end, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      const int32_t code = work->call(work->data, work->sizes, begin, end);
      if (code != 0) __atomic_store_n(&work->failure, code, __ATOMIC_RELAXED);
      begin = __atomic_load_n(&work->next, __ATOMIC_RELAXED);
    }
  }
}

/* What threads call for a number of tasks, with the OrtkitSlices as `user`. */
typedef void (*OrtkitTask)(void* user, size_t index);

/* Cuts work by its cost, and returns how many tasks it has; a single one needs no other thread. */
static inline size_t OrtkitCutWork(OrtkitSlices* work, const OrtkitUnitCost* cost, OrtkitTask* task) {
  work->slice = OrtkitUnitsOfClaim(work->units, cost);
  if (work->slice != 0 && work->slice < work->units) {
    *task = OrtkitComputeClaims;
    return (size_t)OrtkitCores();
  }
  *task = OrtkitComputeSlice;
  work->slice = OrtkitUnitsOfSlice(work->units, cost);
  return (size_t)((work->units - 1) / work->slice + 1);
}

#endif /* ORTKIT_SLICES_H_ */

/* Two intents at a time: the next part is promised, and uploaded, before the one
 * before it is there. One step more than the product takes today; fencing.pml has
 * its rules, and those of a list of two are
 *
 *   - the intents are contiguous and begin at the position
 *   - parts may be published in any order; the position moves over the first only,
 *     when that is published, and the second becomes the first
 *   - a successor finishes both exactly as they stand
 *
 * Holds: what fencing.pml does.
 * Controls, which have to fail:
 *   AHEAD     the position moves over both when the second is published
 *   RECHOOSE  a successor keeps the first and chooses the second anew
 *   NO_FENCE  Swap does not compare the version
 */
#define RECORDS 3
#define SPAN (RECORDS + 1)
#define PART(first, next) (first * SPAN + next)

#ifdef NO_FENCE
#define AT_VERSION true
#else
#define AT_VERSION (rec.version == held)
#endif

typedef Record { byte version; byte epoch; byte position; byte to; byte then } /* 0: no intent */

Record rec;
byte counter;
bool exists[SPAN * SPAN];
byte copies[RECORDS];

inline swap(newPosition, newTo, newThen) {
  atomic {
    if
    :: AT_VERSION ->
       rec.version++; rec.epoch = epoch; rec.position = newPosition; rec.to = newTo; rec.then = newThen;
       if
       :: held = rec.version; written = true
#ifndef NO_FENCE
       :: written = false
#endif
       fi
    :: else -> written = false
    fi
  }
  atomic {
    if
    :: !written && rec.epoch == epoch && rec.version == held + 1 -> held++; written = true
    :: else
    fi
  }
}

inline publish(first, next) {
  atomic {
    if
    :: exists[PART(first, next)]
    :: else ->
       exists[PART(first, next)] = true;
       r = first;
       do
       :: r < next -> copies[r]++; assert(copies[r] == 1); r++
       :: else -> break
       od;
       r = 0
    fi
  }
}

inline choose(from, end) {
  end = from + 1;
  do
  :: end < RECORDS -> end++
  :: break
  od
}

proctype Run() {
  byte epoch, held, position, to, then, seen, r;
  bool written;

  atomic { counter++; epoch = counter }
claim:
  atomic { held = rec.version; seen = rec.epoch; position = rec.position; to = rec.to; then = rec.then };
  if
  :: seen > epoch -> goto end
  :: else
  fi;
  swap(position, to, then);
  if
  :: !written -> goto claim
  :: else
  fi;
#ifdef RECHOOSE
  then = 0;
#endif
  do
  :: position < RECORDS && to == 0 ->
     choose(position, to);
     swap(position, to, 0);
     if
     :: !written -> goto end
     :: else
     fi
  :: to > 0 && to < RECORDS && then == 0 ->
     choose(to, then);
     swap(position, to, then);
     if
     :: !written -> goto end
     :: else
     fi
  :: then > 0 && !exists[PART(to, then)] -> publish(to, then)
  :: to > 0 && !exists[PART(position, to)] -> publish(position, to)
  :: to > 0 && exists[PART(position, to)] ->
     swap(to, then, 0);
     if
     :: !written -> goto end
     :: else
     fi;
     atomic { position = to; to = then; then = 0 }
#ifdef AHEAD
  :: then > 0 && exists[PART(to, then)] ->
     swap(then, 0, 0);
     if
     :: !written -> goto end
     :: else
     fi;
     atomic { position = then; to = 0; then = 0 }
#endif
  :: position == RECORDS ->
     atomic {
       r = 0;
       do
       :: r < RECORDS -> assert(copies[r] == 1); r++
       :: else -> break
       od
     }
     break
  :: goto end                  /* killed */
  od;
end: skip
}

init { atomic { run Run(); run Run(); run Run() } }

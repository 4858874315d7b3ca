/* The fence of one partition whose sink is made of immutable parts (T2).
 *
 * A checkpoint store offers two steps: Load, and Swap at an expected version. A
 * sink offers one: create a part if its name is absent. Runs of the partition
 * come one after the other, each under an epoch of its own; any of them may stop
 * between two steps for as long as it likes, go on when its successors have been
 * at work, or never go on at all. A run
 *
 *   claims      Load; leave if the record has a higher epoch; Swap the own epoch
 *               in, which raises the version and so parts every older run from
 *               the version that it holds
 *   recovers    a promised part that it finds in the record is made as promised
 *   promises    Swap the range of the next part in (the intent)
 *   publishes   create the part under the name that follows from the range
 *   advances    Swap the position behind the part in, with the next intent or
 *               without one
 *
 * A reply to a Swap may be lost on the way. The run then loads the record: own
 * epoch and one version on means that it was written.
 *
 * Holds: no record of the source is in two parts, and a run that sees the
 * position at the end finds each record in one.
 *
 * Controls, which have to fail:
 *   NO_FENCE   Swap does not compare the version
 *   NO_INTENT  parts are created that were not promised
 *   RENAME     a part's name depends on who creates it
 *   FALLBACK   a claim may take the record before the last one
 *   CONSUME    somebody deletes parts (the promise holds while none is deleted)
 */
#define RECORDS 3
#define SPAN (RECORDS + 1)     /* a part [first, next) has number first*SPAN+next */

#ifdef NO_FENCE
#define AT_VERSION true
#else
#define AT_VERSION (rec.version == held)
#endif
#ifdef RENAME
#define NUMBER(first, next) (epoch * SPAN * SPAN + first * SPAN + next)
#else
#define NUMBER(first, next) (first * SPAN + next)
#endif

typedef Record { byte version; byte epoch; byte position; byte from; byte to } /* to == 0: no intent */

Record rec;                    /* in the store */
#ifdef FALLBACK
Record before;                 /* what the last Swap replaced */
#endif
byte counter;                  /* of epochs, in the coordinator */
bool exists[64];               /* parts in the sink */
byte copies[RECORDS];          /* in how many parts a record is */

inline swap(newPosition, newFrom, newTo) {
  atomic {
    if
    :: AT_VERSION ->
#ifdef FALLBACK
       before.position = rec.position; before.from = rec.from; before.to = rec.to;
#endif
       rec.version++; rec.epoch = epoch; rec.position = newPosition; rec.from = newFrom; rec.to = newTo;
       if
       :: held = rec.version; written = true
#ifndef NO_FENCE               /* without a fence the search would not end */
       :: written = false      /* the reply is lost */
#endif
       fi
    :: else -> written = false
    fi
  }
  atomic {                     /* Load, if that did not go well */
    if
    :: !written && rec.epoch == epoch && rec.version == held + 1 -> held++; written = true
    :: else
    fi
  }
}

inline publish(first, next) {
  atomic {
    if
    :: exists[NUMBER(first, next)]
    :: else ->
       exists[NUMBER(first, next)] = true;
       r = first;
       do
       :: r < next -> copies[r]++; assert(copies[r] == 1); r++
       :: else -> break
       od;
       r = 0
    fi
  }
}

proctype Run() {
  byte epoch, held, position, from, to, then, seen, r;
  bool written;

  atomic { counter++; epoch = counter }
claim:
  atomic {
    held = rec.version; seen = rec.epoch;
    position = rec.position; from = rec.from; to = rec.to;
#ifdef FALLBACK
    if
    :: true
    :: position = before.position; from = before.from; to = before.to
    fi
#endif
  }
  if
  :: seen > epoch -> goto end
  :: else
  fi;
  swap(position, from, to);
  if
  :: !written -> goto claim    /* another one's Swap came first */
  :: else
  fi;
  do
  :: position < RECORDS ->
     if
     :: to > 0                 /* promised before: exactly this part */
     :: else ->
        to = position + 1;
        do
        :: to < RECORDS -> to++
        :: break
        od;
#ifndef NO_INTENT
        swap(position, position, to);
        if
        :: !written -> goto end
        :: else
        fi
#endif
     fi;
     publish(position, to);
     then = 0;
     if
     :: true
#ifndef NO_INTENT
     :: to < RECORDS ->
        then = to + 1;
        do
        :: then < RECORDS -> then++
        :: break
        od
#endif
     fi;
     swap(to, to, then);
     if
     :: !written -> goto end
     :: else
     fi;
     position = to; to = then; then = 0
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

#ifdef CONSUME
active proctype Consumer() {
  byte n;
  do
  :: n < SPAN * SPAN -> atomic { exists[n] = false; n++ }
  :: n < SPAN * SPAN -> n++
  :: n == SPAN * SPAN -> break
  od
}
#endif

init { atomic { run Run(); run Run(); run Run() } }

/* The coordinator comes back from a backup: its counter of epochs is lower than
 * the record's epoch, and epochs are given out a second time.
 *
 * A run is named by (epoch, run id). A claim is refused as fenced when the record
 * has a higher epoch, or the same one under another run id. A run that is fenced
 * while the owner key is still its own raises the counter to the record's epoch
 * and takes a new one. The sink is transactional: rows and position are one Swap,
 * so each Swap is a record delivered.
 *
 * Holds: each record is delivered once; the record's epoch never goes down, and
 * never stays the same when the run changes; and a run that is alone takes no
 * more than one raise to get through, however far the counter went back.
 *
 * Controls, which have to fail:
 *   NO_RUN    the run id is not compared: a stranger's Swap passes for the own one
 *   NO_RAISE  a fenced run tries again with whatever the counter gives
 *   NO_FENCE  Swap does not compare the version
 */
#define RECORDS 2
#define RUNS 2

#ifdef NO_FENCE
#define AT_VERSION true
#else
#define AT_VERSION (rec.version == held)
#endif
#ifdef NO_RUN
#define STRANGER false
#define OWN (rec.epoch == epoch)
#else
#define STRANGER (rec.epoch == epoch && rec.by != me)
#define OWN (rec.epoch == epoch && rec.by == me)
#endif

typedef Record { byte version; byte epoch; byte by; byte position }

Record rec;
byte counter;
byte copies[RECORDS];
byte ended;                    /* runs that are over, and the restore */

inline swap(newPosition) {
  atomic {
    if
    :: AT_VERSION ->
       assert(rec.epoch < epoch || rec.epoch == epoch && rec.by == me);
       if
       :: newPosition > position -> copies[position]++; assert(copies[position] == 1)
       :: else
       fi;
       rec.version++; rec.epoch = epoch; rec.by = me; rec.position = newPosition;
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
    :: !written && OWN && rec.version == held + 1 -> held++; written = true
    :: else
    fi
  }
}

proctype Run(byte me; bool last) {
  byte epoch, held, position, fenced;
  bool written;

acquire:
  atomic { counter++; epoch = counter }
claim:
  atomic {
    held = rec.version; position = rec.position;
    if
    :: rec.epoch > epoch || STRANGER ->
       fenced++;
       assert(!last || fenced < 2);
       if
       :: fenced == 2 -> goto end
       :: else
       fi;
#ifndef NO_RAISE
       if
       :: counter < rec.epoch -> counter = rec.epoch
       :: else
       fi;
#endif
       goto acquire
    :: else
    fi
  }
  swap(position);
  if
  :: !written -> goto claim
  :: else
  fi;
  do
  :: position < RECORDS ->
     swap(position + 1);
     if
     :: !written -> break
     :: else -> position++
     fi
  :: position == RECORDS -> break
  :: !last -> break            /* killed, or frozen for good */
  od;
  assert(!last || rec.position == RECORDS);
end:
  ended++
}

active proctype Restore() {    /* to any earlier count, once */
  atomic {
    do
    :: counter > 0 -> counter--
    :: break
    od;
    ended++
  }
}

init {
  atomic { run Run(1, false); run Run(2, false) }
  (ended == RUNS + 1);
  run Run(3, true)
}

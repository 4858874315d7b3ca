/* A partition is handed from one owner to the next: the old one reads no more,
 * writes and commits what it has read, settles the source, deletes its owner key;
 * the new one waits for that, acquires and claims. The scheduler may also take the
 * key away from an owner that does not move (its lease ended, or it is wedged), and
 * that owner may wake up later.
 *
 * The sink is T3: what is written lands, repeated or not, and the position is
 * committed apart from it, with the fence.
 *
 * Holds: a hand-off that nobody had to force delivers each record exactly once, a
 * forced one at least once; the source is never told of more than is committed;
 * only one owner ever holds the key.
 *
 * Variant, which holds:
 *   TRANSACTIONAL  rows and position are one Swap (T1): exactly once, forced or not
 * Controls, which have to fail:
 *   RELEASE_FIRST  the key is deleted before the last commit
 *   SETTLE_FIRST   the source is told before the commit
 *   TRANSACTIONAL,NO_FENCE
 *                  the transaction does not compare the version
 */
#define RECORDS 3
#define NOBODY 0

#ifdef NO_FENCE
#define AT_VERSION true
#else
#define AT_VERSION (version == held)
#endif

byte owner = NOBODY;           /* the owner key; its value is the epoch */
byte counter;
byte version, epochOf, position;
byte settled;
byte copies[RECORDS];
bool forced;                   /* the key was taken away from somebody */
byte holders;                  /* owners between acquire and release or loss */

/* commit moves the position to next; T1 delivers what is between in the same step. */
inline commit(next) {
  atomic {
    if
    :: AT_VERSION ->
#ifdef TRANSACTIONAL
       r = done;
       do
       :: r < next -> copies[r]++; assert(copies[r] == 1); r++
       :: else -> break
       od;
       r = 0;
#endif
       version++; held = version; epochOf = me; position = next; done = next; ok = true
    :: else -> ok = false
    fi
  }
}

inline settle() {
  atomic {
    if
    :: done > settled -> settled = done; assert(settled <= position)
    :: else
    fi
  }
}

inline release() {
  atomic {
    if
    :: owner == me -> owner = NOBODY; holders--
    :: else                    /* compare-delete: it is not ours any more */
    fi
  }
}

proctype Owner() {
  byte me, held, done, read, r;
  bool ok;

  atomic {
    owner == NOBODY ->
    counter++; me = counter; owner = me; holders++; assert(holders == 1)
  };
claim:
  atomic { held = version; done = position; read = done; ok = (epochOf < me) };
  if
  :: !ok -> goto out
  :: else
  fi;
  commit(done);
  if
  :: !ok -> goto claim
  :: else
  fi;
  do
  :: read < RECORDS ->         /* read and write one */
#ifndef TRANSACTIONAL
     atomic {
       copies[read]++;
       assert(forced || copies[read] == 1)
     };
#endif
     read++
  :: read > done ->
#ifdef SETTLE_FIRST
     atomic { settled = (read > settled -> read : settled); assert(settled <= position) };
#endif
     commit(read);
     if
     :: !ok -> goto out        /* fenced */
     :: else
     fi;
     settle()
  :: break                     /* the scheduler wants it elsewhere, or the end */
  od;
#ifdef RELEASE_FIRST
  release();
#endif
  if
  :: read > done ->
     commit(read);
     if
     :: !ok -> goto out
     :: else
     fi
  :: else
  fi;
  settle();
  release();
  if
  :: read == RECORDS ->
     atomic {
       r = 0;
       do
       :: r < RECORDS -> assert(copies[r] >= 1); r++
       :: else -> break
       od;
       r = 0
     }
  :: else
  fi;
out:
  release()
}

active proctype Scheduler() {  /* takes the key away, twice at most */
  byte n;
  do
  :: n < 2 -> n++;
     atomic {
       if
       :: owner != NOBODY -> owner = NOBODY; holders--; forced = true
       :: else
       fi
     }
  :: break
  od
}

init { atomic { run Owner(); run Owner(); run Owner() } }

/* A checkpoint record that went back: a store restored from a backup.
 *
 * Two witnesses know better. The coordinator keeps the mark `claimed`: the version
 * of the last claim and of the last clean end. A claim that finds a lower version
 * stops as regressed. A sink of parts lists its own names: a part that ends beyond
 * the record's position and is not promised in it stops the partition, too.
 * Runs follow one another here (fencing.pml has them side by side); each may be
 * killed at any step, and the store may be restored at any step, once.
 *
 * Holds: no record of the source is delivered twice. Stopping is allowed, and a
 * person decides then.
 *
 * Variants, which hold:
 *   (none)                both witnesses, any earlier record
 *   NO_NAMES,OLD_BACKUP   a sink that cannot list what it has (or T3), and a
 *                         record from before the mark
 * Controls, which have to fail:
 *   NO_NAMES                     any earlier record: one that the killed run wrote
 *                                after its claim is not below the mark. The window
 *                                is what the second witness is for
 *   NO_NAMES,OLD_BACKUP,NO_MARK  nobody looks at the mark
 */
#define RECORDS 3
#define SPAN (RECORDS + 1)
#define VERSIONS 20
#define RUNS 3

typedef Record { byte position; byte to } /* to == 0: no intent */

Record history[VERSIONS];      /* all that the store ever held */
byte version, position, to;    /* the record in the store now */
byte newest;                   /* the highest version ever */
byte mark;                     /* claimed, in the coordinator */
bool exists[SPAN * SPAN];
byte copies[RECORDS];

#define PART(first, next) (first * SPAN + next)

inline swap(newPosition, newTo) {
  atomic {
    if
    :: version == held ->
       version++; position = newPosition; to = newTo;
       assert(version < VERSIONS);
       history[version].position = position; history[version].to = to;
       newest = version;
       held = version
    :: else -> goto stopped    /* the record is another one: regressed */
    fi
  }
}

inline deliver(first, next) {
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

/* names: no part beyond the position but the promised one. */
inline witness() {
#ifndef NO_NAMES
  atomic {
    r = 0;
    do
    :: r < SPAN * SPAN ->
       if
       :: exists[r] && r % SPAN > at && !(end > 0 && r == PART(at, end)) -> r = 0; goto stopped
       :: else
       fi;
       r++
    :: else -> break
    od;
    r = 0
  }
#else
  skip
#endif
}

active proctype Partition() {
  byte runs, held, at, end, r;

  do
  :: runs < RUNS ->
     runs++;
     atomic {                  /* Load */
       held = version; at = position; end = to;
#ifndef NO_MARK
       if
       :: held < mark -> goto stopped
       :: else
       fi
#endif
     }
     swap(at, end);            /* claim */
     if
     :: true -> mark = (mark > held -> mark : held)
     :: goto next              /* killed before the mark, and before any part */
     fi;
     witness();
     do
     :: at < RECORDS ->
        if
        :: end > 0
        :: else ->
           end = at + 1;
           do
           :: end < RECORDS -> end++
           :: break
           od;
           swap(at, end)
        fi;
        deliver(at, end);
        swap(end, 0);
        at = end; end = 0
     :: break                  /* a clean end */
     :: goto next              /* killed */
     od;
     mark = (mark > held -> mark : held);
next: skip
  :: else -> break
  od;
stopped: skip
}

active proctype Restore() {
  byte back;
  atomic {
    back = version;
    do
    :: back > 0 -> back--
    :: break
    od;
#ifdef OLD_BACKUP
    if
    :: back < mark
    :: else -> goto none
    fi;
#endif
    version = back; position = history[back].position; to = history[back].to
  };
none: skip
}

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// job is one thing to measure, with its variants (A, B, …). The first is ours, and
// the others are measured against it.
type job struct {
	name     string
	rows     int
	variants []variant
	// before runs, untimed, before each run; count says how many rows the sink
	// holds, lines what they are: as JSON, in any order.
	before func(ctx context.Context) error
	count  func(ctx context.Context) (int, error)
	lines  func(ctx context.Context, yield func(line []byte)) error
	// left says which peers do not run, and why.
	left []leftOut
}

type variant struct {
	name string
	bin  string
	args func() []string
	env  []string
	// until says that a program that never ends has done its work. nil: it ends.
	until func(ctx context.Context) (bool, error)
}

type leftOut struct{ job, peer, why string }

// result of one variant of a job.
type result struct {
	job, variant string
	rate, cpu    spread // rows/s, CPU seconds
	factor       spread // rate of ours over this one's, of each round
	rssMiB       float64
	fence        []float64 // per cent, as the product counts it
}

// run alternates the variants, after one warm-up of each, and counts at the sink.
// After the warm-up it also looks whether all wrote the same.
func (j job) run(ctx context.Context, n int) ([]result, error) {
	rates, cpus := make([][]float64, len(j.variants)), make([][]float64, len(j.variants))
	factors, fences := make([][]float64, len(j.variants)), make([][]float64, len(j.variants))
	rss := make([]float64, len(j.variants))
	var ours content
	for i := range n + 1 {
		for k, v := range j.variants {
			s, err := j.once(ctx, v)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", j.name, v.name, err)
			}
			if i == 0 {
				switch {
				case len(j.variants) == 1:
				case k == 0:
					ours, err = contentOf(ctx, j.lines)
				default:
					err = ours.compare(ctx, j.lines)
				}
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", j.name, v.name, err)
				}
				continue
			}
			rates[k] = append(rates[k], float64(j.rows)/s.wall.Seconds())
			factors[k] = append(factors[k], rates[0][i-1]/rates[k][i-1])
			cpus[k] = append(cpus[k], s.cpu.Seconds())
			rss[k] = max(rss[k], s.rssMiB)
			if f, ok := fenceCost(s.out); ok {
				fences[k] = append(fences[k], f)
			}
			fmt.Fprintf(os.Stderr, "  %s, %s: %.0f rows/s\n", j.name, v.name, float64(j.rows)/s.wall.Seconds())
		}
	}
	out := make([]result, len(j.variants))
	for k, v := range j.variants {
		out[k] = result{job: j.name, variant: v.name, rate: spreadOf(rates[k]), cpu: spreadOf(cpus[k]),
			factor: spreadOf(factors[k]), rssMiB: rss[k], fence: fences[k]}
	}
	return out, nil
}

// once prepares, times and counts one run.
func (j job) once(ctx context.Context, v variant) (sample, error) {
	if err := j.before(ctx); err != nil {
		return sample{}, err
	}
	syscall.Sync()
	s, err := timed(ctx, v)
	if err != nil {
		return s, err
	}
	got, err := j.count(ctx)
	if err == nil && got != j.rows {
		err = fmt.Errorf("%d rows at the sink instead of %d", got, j.rows)
	}
	return s, err
}

const tableHead = `| job | variant | rows/s, median [min..max] | mqb ÷ this | CPU s | peak RSS MiB | fence cost % |
|---|---|---|---|---|---|---|`

func (r result) String() string {
	fence := "–"
	if len(r.fence) > 0 {
		fence = fmt.Sprintf("%.2f", spreadOf(r.fence).median)
	}
	return fmt.Sprintf("| %s | %s | %s | %.2f [%.2f..%.2f] | %.2f | %.0f | %s |", r.job, r.variant, r.rate,
		r.factor.median, r.factor.min, r.factor.max, r.cpu.median, r.rssMiB, fence)
}

// work holds what the jobs share.
type work struct {
	dir          string
	rows         int    // of the job being made
	fenced, open string // directories of the two builds
	peers        []peer
	servers
}

func (w *work) path(name string) string { return filepath.Join(w.dir, name) }

func (w *work) spec(name, text string) (string, error) {
	path := w.path(name + ".yaml")
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// ours are the ways in which mqb does a task: the first twice, which shows the
// spread, and once without comparisons. A file is appended to, which other programs
// do as well, though they do not wait for the disk; or it is parts.
func (t task) ours(w *work) []own {
	switch {
	case t.kafka != "" && t.out != "": // a file has one partition
		return []own{{"mqb, parts", w.fenced, true, ""}, {"mqb, parts, again (A/A)", w.fenced, true, ""}, {"mqb, parts, no comparisons", w.open, true, ""}}
	case t.out != "":
		return []own{{"mqb", w.fenced, false, ""}, {"mqb again (A/A)", w.fenced, false, ""}, {"mqb, fsync: off", w.fenced, false, ", fsync: off"},
			{"mqb, parts", w.fenced, true, ""}, {"mqb, no comparisons", w.open, false, ""}}
	}
	return []own{{"mqb", w.fenced, false, ""}, {"mqb again (A/A)", w.fenced, false, ""}, {"mqb, no comparisons", w.open, false, ""}}
}

type own struct {
	name, bin string
	parts     bool
	more      string // keys of the file
}

// job makes a job of a task: mqb in its ways, and the peers that can do it.
func (w *work) job(name string, t task) (job, error) {
	j := job{name: name, rows: w.rows}
	for i, o := range t.ours(w) {
		spec, err := w.spec(fmt.Sprintf("mqb-%d", i), t.mqbRoute(o.parts, o.more))
		if err != nil {
			return job{}, err
		}
		j.variants = append(j.variants, variant{name: o.name, bin: filepath.Join(o.bin, "mqbctl"), args: func() []string {
			return []string{"run", spec, "--data-dir", w.path("state"), "-o", "json"}
		}})
	}
	for _, p := range w.peers {
		v, why, err := p.variant(w, t)
		switch {
		case err != nil:
			return job{}, fmt.Errorf("%s: %w", p.name(), err)
		case why != "":
			j.left = append(j.left, leftOut{name, p.name(), why})
		default:
			v.name = p.name()
			j.variants = append(j.variants, v)
		}
	}
	return j, nil
}

// clean removes what a run before left behind.
func (w *work) clean(context.Context) error {
	for _, d := range []string{"out", "state"} {
		if err := os.RemoveAll(w.path(d)); err != nil {
			return err
		}
	}
	return os.MkdirAll(w.path("out"), 0o755)
}

// Run runs every scenario by name and prints each with its result.
//
//	go run ./test/scenarios/run                run them
//	go run ./test/scenarios/run -only '^(5|7)$'  those whose number or text matches
//	go run ./test/scenarios/run -write         put the list into docs/scenarios.md, run nothing
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mqbridge/mqb/test/scenarios"
)

var (
	only  = flag.String("only", "", "a regular `expression` that a scenario's number or text must match")
	write = flag.Bool("write", false, "write docs/scenarios.md and run nothing")
)

const page = "docs/scenarios.md"

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := error(nil)
	if *write {
		err = rewrite()
	} else {
		err = run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scenarios:", err)
		os.Exit(1)
	}
}

// result of one test: what go test said, and how long it took.
type result struct {
	action  string
	elapsed float64
}

func run(ctx context.Context) error {
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	var rows []scenarios.Scenario
	packages := map[string][]string{}
	for _, g := range scenarios.List {
		for _, s := range g.Rows {
			if !match.MatchString(s.ID) && !match.MatchString(s.What) {
				continue
			}
			rows = append(rows, s)
			for _, t := range s.Tests {
				top, _, _ := strings.Cut(t.Name, "/")
				if !slices.Contains(packages[t.Package], top) {
					packages[t.Package] = append(packages[t.Package], top)
				}
			}
		}
	}
	results := map[scenarios.Test]result{}
	began := time.Now()
	for _, pkg := range sorted(packages) {
		fmt.Fprintf(os.Stderr, "%s: %s\n", pkg, strings.Join(packages[pkg], ", "))
		if err := test(ctx, pkg, packages[pkg], results); err != nil {
			return err
		}
	}
	bad := 0
	for _, s := range rows {
		fmt.Printf("%3s  %s\n     → %s\n", s.ID, s.What, s.Holds)
		for _, t := range s.Tests {
			r, ran := results[t]
			word := map[string]string{"pass": "pass", "fail": "FAIL", "skip": "SKIPPED"}[r.action]
			if !ran || word == "" {
				word = "NOT RUN"
			}
			if word != "pass" {
				bad++
			}
			fmt.Printf("     %-8s %6.2f s  %s %s\n", word, r.elapsed, t.Package, t.Name)
		}
		if s.Open != "" {
			fmt.Printf("     not built: %s\n", s.Open)
		}
	}
	fmt.Printf("\n%d scenarios, %d tests, %.0f s\n", len(rows), len(results), time.Since(began).Seconds())
	if bad > 0 {
		return fmt.Errorf("%d results that are no pass", bad)
	}
	return nil
}

func sorted(packages map[string][]string) (names []string) {
	for p := range packages {
		names = append(names, p)
	}
	slices.Sort(names)
	return names
}

// test runs some tests of a package and adds the results of all their subtests.
func test(ctx context.Context, pkg string, names []string, results map[scenarios.Test]result) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-json", "-timeout", "20m", "-run", "^("+strings.Join(names, "|")+")$", "./"+pkg)
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	runErr := cmd.Run()
	var exit *exec.ExitError
	if runErr != nil && !errors.As(runErr, &exit) {
		return runErr
	}
	var log strings.Builder
	for line := range bytes.Lines(out.Bytes()) {
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		log.WriteString(e.Output)
		if e.Test != "" && slices.Contains([]string{"pass", "fail", "skip"}, e.Action) {
			results[scenarios.Test{Package: pkg, Name: e.Test}] = result{e.Action, e.Elapsed}
		}
	}
	if runErr != nil {
		fmt.Fprint(os.Stderr, log.String())
	}
	return ctx.Err()
}

// rewrite puts the list between the marks of the page.
func rewrite() error {
	const from, to = "<!-- list -->\n", "<!-- /list -->"
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), from)
	_, after, ok2 := strings.Cut(rest, to)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the list", page)
	}
	return os.WriteFile(page, []byte(before+from+"\n"+scenarios.Page()+"\n"+to+after), 0o644)
}

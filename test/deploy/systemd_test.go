package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqbridge/mqb/test/harness"
)

// systemd itself says whether it knows each setting of the unit, and how much the
// unit leaves open (0 to 10).
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	harness.Install(t, "systemd")
	text, err := os.ReadFile(filepath.Join(root(t), "deploy/systemd/mqbd.service"))
	must(t, err)
	dir := t.TempDir()
	// The check wants to see a program.
	program := filepath.Join(dir, "mqbd")
	must(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755))
	const installed = "ExecStart=/usr/bin/mqbd "
	if !strings.Contains(string(text), installed) {
		t.Fatalf("no %s", installed)
	}
	unit := filepath.Join(dir, "mqbd.service")
	must(t, os.WriteFile(unit, []byte(strings.Replace(string(text), installed, "ExecStart="+program+" ", 1)), 0o644))
	if _, err := command(t, 30*time.Second, nil, "systemd-analyze", "verify", "--man=no", unit); err != nil {
		t.Error(err)
	}
	if _, err := command(t, 30*time.Second, nil, "systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", unit); err != nil {
		t.Error(err)
	}
}

// The image is empty, so the programs have to bring roots for TLS and time zones.
func TestProgramsBringRootsAndTimeZones(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"./cmd/mqbd", "./cmd/mqbctl"} {
		out, err := command(t, time.Minute, nil, "go", "list", "-deps", program)
		must(t, err)
		for _, pkg := range []string{"golang.org/x/crypto/x509roots/fallback", "time/tzdata"} {
			if !strings.Contains(out, pkg+"\n") {
				t.Errorf("%s does not hold %s", program, pkg)
			}
		}
	}
}

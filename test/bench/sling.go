package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// sling is Sling's program, out of its Python package.
type sling struct{ bin, home string }

const slingVersion = "1.4.11"

func (*sling) name() string { return "Sling " + slingVersion }

func (s *sling) install(ctx context.Context, p *program) error {
	venv := python(ctx, p, "sling-linux-amd64=="+slingVersion)
	found, err := filepath.Glob(filepath.Join(venv, "lib", "*", "site-packages", "sling_linux_amd64", "bin", "sling-linux-amd64"))
	if err != nil || len(found) == 0 {
		return errors.Join(err, errors.New("no program in the package"))
	}
	s.bin, s.home = found[0], filepath.Join(venv, "home")
	// The package leaves it without the right to run.
	return os.Chmod(s.bin, 0o755)
}

func (s *sling) variant(_ *work, t task) (variant, string, error) {
	args := []string{"run", "--src-stream", "file://" + t.in}
	switch t.kind {
	case csvToJSONL, csvToZstd:
		args = append(args, "--columns", slingColumns("string", "string"))
	case csvToTyped:
		args = append(args, "--columns", slingColumns("bigint", "json"))
	case jsonlToJSONL, jsonlToZstd:
		args = append(args, "--columns", slingColumns("string", "string"), "--src-options", `{"flatten": 1}`)
	case jsonlCopied, jsonlUpserted:
		args = append(args, "--columns", slingColumns("bigint", "json"), "--src-options", `{"flatten": 1}`,
			"--tgt-conn", t.postgres+"?sslmode=disable", "--tgt-object", "public.orders")
	case csvZstdToJSONL, jsonlZstdToJSONL:
		return variant{}, "reads no zstd", nil
	default:
		return variant{}, "has no Kafka connector", nil
	}
	switch t.kind {
	case jsonlCopied:
		args = append(args, "--mode", "truncate")
	case jsonlUpserted:
		args = append(args, "--mode", "incremental", "--primary-key", "id")
	case csvToZstd, jsonlToZstd:
		args = append(args, "--tgt-object", "file://"+t.out, "--tgt-options", `{"compression": "zstd"}`)
	default:
		args = append(args, "--tgt-object", "file://"+t.out)
	}
	return variant{bin: s.bin, args: func() []string { return args },
		env: []string{"SLING_DISABLE_TELEMETRY=true", "SLING_LOADED_AT_COLUMN=false", "SLING_HOME_DIR=" + s.home}}, "", nil
}

// slingColumns are the types of all columns; a map of them loses their order.
func slingColumns(id, attributes string) string {
	type column struct {
		Name string `json:"name"`
		Type string `json:"type"`
	}
	var list []column
	for _, c := range columns {
		list = append(list, column{c, "string"})
	}
	list[0].Type, list[len(list)-1].Type = id, attributes
	text, _ := json.Marshal(list)
	return string(text)
}

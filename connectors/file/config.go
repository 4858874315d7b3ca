// Package file reads files, one partition each, and writes files.
//
// The source is positional: it resumes at a byte offset and counts records from
// 0, blank lines left out. The sink is T2 (docs/protocol.md) in one of two ways. It
// writes immutable parts: a part's name is its range of records, so a part that is
// written twice is there once. Or it appends to one file, whose length is committed
// with the position: what stands behind it is cut off.
package file

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mqbridge/mqb/connectors"
	"github.com/mqbridge/mqb/connectors/file/csvjson"
	"github.com/mqbridge/mqb/route"
)

// Config is the endpoint's configuration, as source or as sink.
type Config struct {
	Path          string        `yaml:"path" doc:"Source: a file or a glob (** crosses directories, but no links to them), each file of which is a partition; a named pipe, or - for standard input, which are read once and in order. Sink: the file to append to, in which ${partition} stands for the partition, a pipe, or - for standard output; with name_by: source_position the directory of the parts."`
	Format        string        `yaml:"format" default:"normal" doc:"normal (JSON envelope with id and metadata, whose payload is text, or base64 where it is none; also text, envelope, envelope_text), json (the envelope with a payload that is JSON as that value; also envelope_json), raw (the payload alone, whatever it is; also payload), csv. Sources take a line that is no envelope for a payload; to json it must be JSON."`
	Delimiter     string        `yaml:"delimiter" doc:"The byte that ends a record, a newline if absent. Sinks with normal and json: a control character, since others may be part of an envelope. Not for csv."`
	Compression   string        `yaml:"compression" enum:"none|gzip|zstd|lz4" doc:"How the files are compressed; if absent, what the extension of the path says (.gz, .zst, .lz4)."`
	Mode          string        `yaml:"mode" default:"consume" doc:"Sources: consume reads each file from its beginning and resumes where it was."`
	NameBy        string        `yaml:"name_by" default:"auto" doc:"Sinks: auto appends to the file at path, source_position writes immutable parts named after the records in them into the directory at path."`
	Fsync         string        `yaml:"fsync" default:"batch" enum:"off|batch|periodic" doc:"Sinks that append: batch waits for the disk before each commit of the position; periodic commits no more often than each fsync_interval_ms; off leaves it to the system when bytes reach the disk, so that a crash of the machine may lose them. Parts are always waited for."`
	FsyncInterval time.Duration `yaml:"fsync_interval_ms" default:"1000" min:"1ms" doc:"With fsync: periodic."`
	Delete        bool          `yaml:"delete" doc:"Sources: remove a file as a whole (never lines from its front) once it was read to its end and everything in it is durable, if nothing was appended to it since. Names must not come again, and a file must be complete, or be moved into place, before it matches the path."`
	CSV           CSVConfig     `yaml:"csv" doc:"How csv is read and written."`
}

// CSVConfig says how csv is read and written.
type CSVConfig struct {
	Separator  string   `yaml:"separator" default:"," doc:"One byte: itself, tab, space, hex (0x1f), or auto to take it from the header (sources)."`
	Quote      string   `yaml:"quote" default:"\"" doc:"One byte: itself or hex."`
	Header     bool     `yaml:"header" default:"true" doc:"The first record names the columns."`
	Columns    []string `yaml:"columns" doc:"Names of the columns: of a source instead of those in the header, of a sink instead of the fields of the first record. A sink that goes on in a file keeps to the file's header."`
	Nested     string   `yaml:"nested" doc:"Sinks: json writes objects inside of a record as JSON, which is the default; flatten makes columns such as a.b of their fields."`
	OnMismatch string   `yaml:"on_mismatch" default:"warn" doc:"A record with another number of fields than columns: warn fills in empty strings and leaves extra fields out, fail makes it a bad record (on_error). Sinks: warn leaves out fields without a column, fail refuses the record; a missing field is empty."`
}

// Formats of Config.Format, aliases resolved.
const (
	formatNormal = "normal" // an envelope with the payload as text
	formatJSON   = "json"   // an envelope with the payload as a JSON value
	formatRaw    = "raw"    // no envelope
	formatCSV    = "csv"
)

func (c *Config) format() string {
	switch c.Format {
	case "", "text", "envelope", "envelope_text":
		return formatNormal
	case "envelope_json":
		return formatJSON
	case "payload":
		return formatRaw
	}
	return c.Format
}

func (c *Config) delimiter() byte {
	if c.Delimiter == "" {
		return '\n'
	}
	return c.Delimiter[0]
}

// Validate reports what is wrong with the values; the decoder has seen to keys
// and types.
func (c *Config) Validate(side route.Side) []error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf(key+": "+format, args...))
	}
	if c.Path == "" {
		bad("path", "is required")
	}
	switch f := c.format(); f {
	case formatNormal, formatJSON, formatRaw, formatCSV:
	case "parquet":
		bad("format", "%s is not supported yet: use normal (text), json, raw or csv", f)
	default:
		bad("format", "unknown format %q: use raw for lines as they are, normal (text) or json for envelopes, or csv", f)
	}
	if len(c.Delimiter) > 1 || c.Delimiter != "" && c.Delimiter[0] >= utf8.RuneSelf {
		bad("delimiter", "must be one ASCII byte, not %q", c.Delimiter)
	} else if c.Delimiter != "" && c.format() == formatCSV {
		bad("delimiter", "is for line formats; csv has csv.separator")
	}
	if f := c.format(); side == route.Output && (f == formatNormal || f == formatJSON) && c.delimiter() >= ' ' {
		// It may be part of an envelope, which would be read as two records.
		bad("delimiter", "%q may occur inside of the JSON that format: %s writes; use a control character such as \"\\n\" or \"\\0\"", c.Delimiter, f)
	}
	if c.format() == formatCSV {
		for _, err := range c.CSV.validate(side) {
			errs = append(errs, fmt.Errorf("csv.%w", err))
		}
		if side == route.Output && c.CSV.Header && c.NameBy != "source_position" {
			for i, name := range c.CSV.Columns {
				if slices.Contains(c.CSV.Columns[:i], name) {
					// A file with such a header could not be gone on with.
					bad("csv.columns", "%q is there twice", name)
				}
			}
		}
	}
	if c.Delete && side == route.Output {
		bad("delete", "is for sources")
	} else if c.Delete && isPipe(c.Path) {
		bad("delete", "is for files, not for a pipe")
	}
	if side == route.Output {
		switch c.NameBy {
		case "source_position":
			if strings.Contains(c.Path, partitionToken) {
				bad("path", "%s is for files that are appended to; parts have the partition in their names", partitionToken)
			}
		case "", "auto":
		case "write_time":
			bad("name_by", "write_time is for object stores; use source_position for parts, or leave it out to append to one file")
		default:
			bad("name_by", "unknown value %q, use auto or source_position", c.NameBy)
		}
		return errs
	}
	switch c.Mode {
	case "", "consume":
	case "subscribe", "group_subscribe":
		bad("mode", "%s is not supported yet, use consume", c.Mode)
	default:
		bad("mode", "unknown mode %q, use consume", c.Mode)
	}
	return errs
}

func (c *CSVConfig) validate(side route.Side) []error {
	var errs []error
	sep, err := c.separator()
	if err != nil {
		errs = append(errs, fmt.Errorf("separator: %w", err))
	}
	quote, err := c.quote()
	if err != nil {
		errs = append(errs, fmt.Errorf("quote: %w", err))
	}
	if len(errs) == 0 && sep != auto {
		if _, err := csvjson.New(sep, quote); err != nil {
			errs = append(errs, fmt.Errorf("separator: %w", err))
		}
	}
	if !c.Header && len(c.Columns) == 0 {
		errs = append(errs, fmt.Errorf("columns: is required with header: false"))
	}
	switch {
	case side == route.Output && c.Separator == "auto":
		errs = append(errs, fmt.Errorf("separator: auto is for sources"))
	case side == route.Input && c.Nested != "":
		errs = append(errs, fmt.Errorf("nested: is for sinks"))
	}
	switch c.Nested {
	case "", "json", "flatten":
	default:
		errs = append(errs, fmt.Errorf("nested: unknown value %q, use json or flatten", c.Nested))
	}
	switch c.OnMismatch {
	case "", "warn", "fail":
	default:
		errs = append(errs, fmt.Errorf("on_mismatch: unknown value %q, use warn or fail", c.OnMismatch))
	}
	return errs
}

// auto is what separator returns when the header decides.
const auto byte = 0

func (c *CSVConfig) separator() (byte, error) {
	switch c.Separator {
	case "":
		return ',', nil
	case "auto":
		return auto, nil
	case "tab", `\t`:
		return '\t', nil
	case "space":
		return ' ', nil
	}
	return oneByte(c.Separator)
}

func (c *CSVConfig) quote() (byte, error) {
	if c.Quote == "" {
		return '"', nil
	}
	return oneByte(c.Quote)
}

func oneByte(s string) (byte, error) {
	if h, ok := strings.CutPrefix(s, "0x"); ok {
		n, err := strconv.ParseUint(h, 16, 7)
		if err != nil || n == 0 {
			return 0, fmt.Errorf("%q is no ASCII byte in hex", s)
		}
		return byte(n), nil
	}
	if len(s) != 1 || s[0] >= utf8.RuneSelf {
		return 0, fmt.Errorf("must be one ASCII byte, not %q", s)
	}
	return s[0], nil
}

// sinkCapabilities is what the sink promises, as configured.
func (c *Config) sinkCapabilities() route.SinkCapabilities {
	switch {
	case isStream(c.Path):
		return route.SinkCapabilities{
			Tier: route.TierNone, Locality: route.NodeLocal,
			Why:   "what was written to a pipe or to standard output can neither be taken back nor found again",
			Raise: "a path that is a file",
		}
	case c.NameBy == "source_position":
		return route.SinkCapabilities{
			Tier: route.TierDeterministic, Parts: true, Durable: true, Locality: route.NodeLocal,
			Why: "parts are named after the records in them and created only if absent",
		}
	case c.Fsync == "off":
		return route.SinkCapabilities{
			Tier: route.TierDeterministic, Append: true, Locality: route.NodeLocal,
			Why:   "with fsync: off a crash of the machine may take what was committed; otherwise the file is cut to the length that was committed with the position",
			Raise: "fsync: batch",
		}
	}
	return route.SinkCapabilities{
		Tier: route.TierDeterministic, Append: true, Durable: true, Locality: route.NodeLocal,
		Why: "the file's length is committed with the position, and what stands behind it is cut off before anything is written",
	}
}

// commitEvery is how far apart commits are at least, 0 where the route decides.
func (c *Config) commitEvery() time.Duration {
	if c.Fsync == "periodic" {
		return c.FsyncInterval
	}
	return 0
}

// sourceCapabilities says what can be read again. shared_storage, which lifts the
// locality, is the route's key. A file that is deleted at its end is still read by
// position, not by what is left of it: it goes when nobody needs it any more.
func (c *Config) sourceCapabilities() route.SourceCapabilities {
	if isPipe(c.Path) {
		return route.SourceCapabilities{
			EndsItself: true, Locality: route.NodeLocal,
			Why: "a pipe is read once: what a crash takes with it cannot be read again",
		}
	}
	return route.SourceCapabilities{
		StableIdentity: true, DurablePosition: true, NumberedPosition: true,
		EndsItself: true, Locality: route.NodeLocal,
	}
}

// Type is the endpoint type "file".
func Type() connectors.Type {
	return connectors.Type{
		EndpointType: route.EndpointType{
			Name:      "file",
			NewConfig: func() any { return new(Config) },
			Source:    func(config any) route.SourceCapabilities { return config.(*Config).sourceCapabilities() },
			Sink:      func(config any) route.SinkCapabilities { return config.(*Config).sinkCapabilities() },
			Reserved: []string{
				"encryption", "group_id", "read_from_tail", "source_metadata",
			},
		},
		NewSource: newSource,
		NewSink:   newSink,
	}
}

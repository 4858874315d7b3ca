package route

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// FileChecker is a config that names files which its nodes read when the route
// starts, so that decoding does not depend on where it happens.
type FileChecker interface {
	// CheckFiles reads them as a node does. An error that is fs.ErrNotExist says that
	// one is not on this machine.
	CheckFiles() error
}

// CheckFiles looks into the files that the nodes read when the route starts. missing
// says which ones this machine does not have, which need not have them; the error is
// everything that is wrong with the others.
func (s *Spec) CheckFiles() (missing []string, err error) {
	var errs []error
	for _, m := range slices.Concat(s.Input.Middlewares, s.Output.Middlewares) {
		c, ok := m.Config.(FileChecker)
		if !ok {
			continue
		}
		switch err := c.CheckFiles(); {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, fmt.Sprintf("%s: route %s: %s: %v on this machine: each node that runs the route needs it", m.Where, s.Name, m.Type, err))
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: route %s: %s: %w", m.Where, s.Name, m.Type, err))
		}
	}
	return missing, errors.Join(errs...)
}

// ReadYAML reads a text that is no configuration by the rules of one: scalars are as
// in an Ordered, mappings map[string]any, lists []any; variables are left as they
// are. The error is an Errors, whose places are in file.
func ReadYAML(file string, data []byte) (any, error) {
	d := &decoder{file: file}
	root := d.parseYAML(data)
	if root != nil {
		d.checkPlain(root, "")
	}
	if len(d.errs) > 0 {
		d.errs.sort()
		return nil, d.errs
	}
	return root.plain(), nil
}

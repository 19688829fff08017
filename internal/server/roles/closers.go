package roles

import (
	"errors"
	"fmt"
	"slices"
)

// closers is a stack of the parts that a process closes at its end. The part that was pushed last closes first. The
// zero value is empty.
type closers struct{ stack []closer }

type closer struct {
	part  string // for errors
	close func() error
}

// push adds a part on top of the stack. Its close is called once.
func (c *closers) push(part string, close func() error) {
	c.stack = append(c.stack, closer{part, close})
}

// close closes all parts from the top down, and leaves the stack empty. Its error joins those of all parts.
func (c *closers) close() error {
	var failed []error
	for _, one := range slices.Backward(c.stack) {
		if err := one.close(); err != nil {
			failed = append(failed, fmt.Errorf("close the %s: %w", one.part, err))
		}
	}
	c.stack = nil
	return errors.Join(failed...)
}

// infallible returns a closer for a function that cannot fail.
func infallible(close func()) func() error {
	return func() error {
		close()
		return nil
	}
}

package process

import (
	"bytes"
	"context"
	"errors"
	"io"
)

// maxMessage is the maximum size of Exit.Message in bytes.
const maxMessage = 4 << 10

// Exit is how a command failed by itself. The zero value is for other errors, and for success.
type Exit struct {
	Status  string // as Usage.Exit
	Message string // the beginning of standard error
}

// Read runs a command and calls read with its output. If read fails, the command is killed, and the error is that of
// read, unless the output broke off because the command failed. Other errors are those of Start and of Wait.
func (r *Runner) Read(ctx context.Context, c Command, read func(io.Reader) error) (Exit, error) {
	var message bytes.Buffer
	c.Stderr = func(b []byte) { message.Write(b[:min(len(b), maxMessage-message.Len())]) }
	p, err := r.Start(ctx, c)
	if err != nil {
		return Exit{}, err
	}
	out := &lastError{r: p.Stdout()}
	readErr := read(out)
	isCut := out.err != nil && out.err != io.EOF || out.err == io.EOF && errors.Is(readErr, io.ErrUnexpectedEOF)
	if readErr != nil && !isCut { // otherwise the command ends by itself, and with its own status
		p.Kill()
	}
	usage, err := p.Wait()
	if err == nil || readErr != nil && !isCut {
		return Exit{}, readErr
	}
	return Exit{usage.Exit, message.String()}, err
}

// lastError keeps the error of a Read.
type lastError struct {
	r   io.Reader
	err error
}

func (r *lastError) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	if err != nil {
		r.err = err
	}
	return n, err
}

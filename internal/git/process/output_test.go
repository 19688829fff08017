package process

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

// TestSmallPipe reads a pipe with a small buffer. Data and the end wake Read, and its deadline and Close are exact.
func TestSmallPipe(t *testing.T) {
	t.Parallel()
	small := func() (*Output, *os.File) {
		o, child, err := makeOutput(4 << 10)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { o.Close(); child.Close() })
		if o.raw == nil {
			t.Skip("how large a pipe is, is known on Linux only")
		}
		return o, child
	}
	o, child := small()
	o.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := o.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
	o.SetReadDeadline(time.Time{})
	data := bytes.Repeat([]byte("0123456789abcde\n"), 1<<14)
	go func() {
		_, _ = child.Write(data)
		child.Close()
	}()
	if got, err := io.ReadAll(o); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
	}

	o, _ = small()
	ended := make(chan error, 1)
	go func() {
		_, err := o.Read(make([]byte, 1))
		ended <- err
	}()
	o.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Read continued after Close, want an error")
	}
}

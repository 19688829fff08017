package archive

import (
	"io"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
)

func TestLimitedReader(t *testing.T) {
	t.Parallel()
	if b, err := io.ReadAll(&limitedReader{strings.NewReader("12345"), 5}); err != nil || string(b) != "12345" {
		t.Errorf("5 of 5 bytes: %q, %v", b, err)
	}
	if _, err := io.ReadAll(&limitedReader{strings.NewReader("123456"), 5}); !fault.Is(err, fault.Invalid) {
		t.Errorf("6 of 5 bytes: %v", err)
	}
}

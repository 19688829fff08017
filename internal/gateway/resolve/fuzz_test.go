package resolve

import (
	"bytes"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Decoded values are encoded to values of the same answer, and a value with another byte is invalid.
func FuzzDecode(f *testing.F) {
	c := coder{}
	q := question("team/app", "main")
	for _, a := range []node.Answer{
		{ID: oid(1), Type: git.Commit, Ref: "refs/heads/main",
			Version: git.Version{Incarnation: "i", Epoch: 1, Generation: 1<<64 - 1}},
		{ID: git.RawObjectID(bytes.Repeat([]byte{7}, 32)), Type: git.Tag, Ref: "HEAD"},
	} {
		value, ok := c.encode(stored{q, a})
		if !ok {
			f.Fatal("it has no value")
		}
		if got, ok := c.decode(q, string(value)); !ok || got != a {
			f.Fatalf("%v became %v", a, got)
		}
		for i := range value {
			changed := bytes.Clone(value)
			changed[i] ^= 0x40
			if got, ok := c.decode(q, string(changed)); ok {
				f.Fatalf("with another byte %d it is %v", i, got)
			}
			if _, ok := c.decode(q, string(value[:i])); ok {
				f.Fatalf("%d bytes of it are a value", i)
			}
		}
		f.Add(value)
		f.Add(append([]byte("P1"), value[2:len(value)-markSize]...))
	}
	f.Add([]byte("P1"))
	f.Fuzz(func(t *testing.T, body []byte) {
		// A valid mark follows, so that decode does not stop at it.
		value := append(bytes.Clone(body), c.mark(q, body)...)
		a, ok := c.decode(q, string(value))
		if !ok {
			return
		}
		again, ok := c.encode(stored{q, a})
		if b, same := c.decode(q, string(again)); !ok || !same || b != a {
			t.Errorf("%q is read as %v, which is written as %q, and read as %v", value, a, again, b)
		}
	})
}

// The guard's result does not depend on the pieces in which bytes arrive, and it refuses every length above the limit.
func FuzzGuard(f *testing.F) {
	for _, s := range []string{
		"+OK\r\n", "$3\r\nabc\r\n", "*2\r\n$1\r\na\r\n$-1\r\n", "*1\r\n$1099511627776\r\n", "*2147483647\r\n",
		":7\r\n-ERR x\r\n", "*1\r\n*1\r\n*300\r\n", "%1\r\n+a\r\n:1\r\n", "\n\n", "x\r\n",
	} {
		f.Add([]byte(s), 1)
	}
	f.Fuzz(func(t *testing.T, reply []byte, size int) {
		size = max(1, size%64)
		var whole, parts guarded
		want := whole.scan(reply)
		var got error
		for rest := reply; len(rest) > 0 && got == nil; {
			n := min(size, len(rest))
			got = parts.scan(rest[:n])
			rest = rest[n:]
		}
		if (want == nil) != (got == nil) {
			t.Errorf("whole: %v; in pieces of %d: %v", want, size, got)
		}
		if want == nil && (whole.skip > maxElement+2 || len(whole.line) > maxLine || whole.skip < 0 || whole.left < 0) {
			t.Errorf("let through %+v", whole)
		}
	})
}

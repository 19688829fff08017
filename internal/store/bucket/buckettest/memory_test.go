package buckettest

import "testing"

func TestMemory(t *testing.T) {
	t.Parallel()
	Suite(t, NewMemory(1))
}

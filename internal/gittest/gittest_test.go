package gittest

import "testing"

func TestRandomIsReproducible(t *testing.T) {
	shape := Shape{Merge: 0.3, Skew: true}
	a, b := Random(t, 7, shape), Random(t, 7, shape)
	if x, y := a.Git("for-each-ref"), b.Git("for-each-ref"); x != y {
		t.Errorf("two repositories from one seed differ:\n%s\n\n%s", x, y)
	}
	a.Git("fsck", "--strict")
}

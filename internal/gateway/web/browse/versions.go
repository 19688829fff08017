package browse

import (
	"cmp"
	"strings"
)

// compareVersions compares names with their numbers by value: v1.9 is before v1.10, and v1.0-rc1 before v1.0.
func compareVersions(a, b string) int {
	order := 0
	for order == 0 && (a != "" || b != "") {
		x, y := versionPart(a), versionPart(b)
		a, b = a[len(x):], b[len(y):]
		n, m := strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		order = cmp.Or(versionRank(x)-versionRank(y), len(n)-len(m), strings.Compare(n, m), strings.Compare(x, y))
	}
	return order
}

// versionPart returns the digits at the start of a name, or one other byte.
func versionPart(name string) string {
	n := len(name) - len(strings.TrimLeft(name, "0123456789"))
	return name[:min(max(n, 1), len(name))]
}

// versionRank orders parts: what is before a release, the end, and all others.
func versionRank(part string) int {
	switch part {
	case "-":
		return 0
	case "":
		return 1
	}
	return 2
}

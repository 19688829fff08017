package git

import "path"

// MatchComponents reports whether a pattern matches a path, both as components. "**" as a component matches any number
// of components, at least one at the end of the pattern. In others "*" matches any characters and "?" one.
func MatchComponents(pattern, components []string) bool {
	for i, want := range pattern {
		if want == "**" {
			rest := pattern[i+1:]
			if len(rest) == 0 {
				return i < len(components)
			}
			for skip := i; skip <= len(components); skip++ {
				if MatchComponents(rest, components[skip:]) {
					return true
				}
			}
			return false
		}
		if i >= len(components) {
			return false
		}
		if ok, err := path.Match(want, components[i]); err != nil || !ok {
			return false
		}
	}
	return len(pattern) == len(components)
}

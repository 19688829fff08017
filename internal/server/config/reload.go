package config

import "slices"

// ChangedKeys lists the keys whose values differ, without those of arrays of tables.
func ChangedKeys(a, b *Config) (list []string) {
	values := map[string]string{}
	for _, s := range Settings(a) {
		values[s.Key] = s.String()
	}
	for _, s := range Settings(b) {
		if PlainKey(s.Key) == s.Key && values[s.Key] != s.String() {
			list = append(list, s.Key)
		}
	}
	slices.Sort(list)
	return list
}

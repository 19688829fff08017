package config

import (
	"fmt"
	"io"
	"strings"
)

// ShowConfig prints a configuration as a file. Each line ends with the origin of the value.
func ShowConfig(w io.Writer, cfg *Config, from Origins) error {
	table, auto := "", cfg.automatic()
	var out strings.Builder
	for _, s := range Settings(cfg) {
		prefix, name := "", s.Key
		if dot := strings.LastIndex(s.Key, "."); dot >= 0 {
			prefix, name = s.Key[:dot], s.Key[dot+1:]
		}
		if prefix != table {
			table = prefix
			if array := PlainKey(table); array != table {
				fmt.Fprintf(&out, "\n[[%s]]\n", array)
			} else {
				fmt.Fprintf(&out, "\n[%s]\n", table)
			}
		}
		origin := from[s.Key]
		if choice := auto[s.Key]; choice != "" {
			origin += " (" + choice + ")"
		}
		fmt.Fprintf(&out, "%-40s # %s\n", name+" = "+s.TOML(), origin)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

package balance

import "strings"

// Caller is whom work is for, where callers share it fairly: the name of an identity, or the network of somebody anonymous, as in
// "192.0.2.0/24". Names have no slash, so nobody can call himself a network. "" is the server itself: work that is for no caller in
// particular.
type Caller string

// Anonymous tells whether it is a network.
func (c Caller) Anonymous() bool { return strings.IndexByte(string(c), '/') >= 0 }

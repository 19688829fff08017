// Package healthv1 holds the messages of the health service that gRPC defines, under names that do not collide with
// those of other libraries. Generated from health.proto by make proto.
package healthv1

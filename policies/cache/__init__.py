"""The exact cache: identity of a call, stores, coalescing of identical calls, replay in the asked form."""
